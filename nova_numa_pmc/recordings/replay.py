# SPDX-License-Identifier: Apache-2.0
"""Read samples that were taken earlier, or on another host, from a file.

There are three formats, which are told apart by how the file begins: a recording
(``nova-numa-rebalance record``); JSON with one sample per line (``top --json``); and the output of
``perf stat -x, -I``.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from nova_numa_pmc.core import counter_roles, pressure, rates
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.recordings import columns, perf_stat, recording
from nova_numa_pmc.recordings.perf_stat import NODE_SCOPE, IntervalCounts
from nova_numa_pmc.sample_records import COUNTED, JSON_NAMES, GuestSample, NodeSample, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TextIO

    from nova_numa_pmc.core.rates import CounterDelta

    #: {role: deltas of its events}
    _DeltasByRole = dict[str, list[CounterDelta | None]]

_LINE_MAX_BYTES = 16 << 20
SOURCE = 'perf stat'


def read(
    path: str, on_damage: Callable[[str], object] | None = None, cpu: str | None = None
) -> Iterator[Sample]:
    """Yield the samples of a file.

    :param on_damage: function that is called with a line of text for each part of the file that
        cannot be parsed
    :param cpu: CPU that the counts are from ('westmere-dp', 'GenuineIntel-6-2C-2'), which
        determines the meaning of raw events
    :raises RecordingError: the file has none of these formats, or cannot be read
    """
    # A recording may consist of rotated files only, or its newest file may still be empty.
    beginning = _read_beginning(path) if os.path.exists(path) else b''
    if not beginning or beginning.startswith((recording.MARKER, recording.OLD_MARKER)):
        yield from recording.read(path, on_damage)
        return
    report_damage = on_damage or (lambda text: None)
    with open(path, encoding='utf-8', errors='replace') as file:
        if not beginning.lstrip().startswith(b'{'):
            yield from _read_perf_stat(path, file, report_damage, cpu)
        else:
            yield from _read_lines(path, file, report_damage)


def _read_beginning(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RecordingError('%s: %s' % (path, error.strerror)) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > recording.FILE_MAX_BYTES:
            raise RecordingError(
                '%s: not a regular file of at most %d bytes' % (path, recording.FILE_MAX_BYTES)
            )
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _read_lines(
    path: str, file: TextIO, report_damage: Callable[[str], object]
) -> Iterator[Sample]:
    any_sample = False
    for number, line in enumerate(iter(lambda: file.readline(_LINE_MAX_BYTES), ''), 1):
        if not line.strip():
            continue
        try:
            sample = from_data(json.loads(line))
        except (ValueError, RecursionError, RecordingError) as error:
            report_damage('%s: line %d: %s' % (path, number, error))
            continue
        any_sample = True
        yield sample
    if not any_sample:
        raise RecordingError(
            '%s: contains no sample (one line of nova-numa-rebalance top --json)' % path
        )


def from_data(data: Any) -> Sample:
    """Return the sample from the output of :func:`nova_numa_pmc.sample_records.to_data`.

    :raises RecordingError: the data is something else
    """
    try:
        rows = [
            dict(
                guest,
                devices=[
                    [device['address'], device['node'], device['local']]
                    for device in guest.get('devices', ())
                ],
            )
            for guest in data['guests']
        ]
        data = dict(
            data, nodes=_columns(data['nodes'], NodeSample), guests=_columns(rows, GuestSample)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError('not a sample: %s' % error) from None
    return columns.from_columns(data)


def _columns(rows: Sequence[Any], kind: type[NodeSample] | type[GuestSample]) -> dict[str, Any]:
    """Return a list of dicts as a recording's columns, without the fields that the dicts lack."""
    return {
        name: [row[JSON_NAMES.get(field, field)] for row in rows]
        for field, name in columns.column_names(kind).items()
        if not rows or JSON_NAMES.get(field, field) in rows[0]
    }


def _read_perf_stat(
    path: str, file: TextIO, report_damage: Callable[[str], object], cpu: str | None
) -> Iterator[Sample]:
    names, minus = perf_stat.role_names(cpu), perf_stat.subtracted_roles(cpu)
    any_interval = False
    intervals = perf_stat.parse(
        iter(lambda: file.readline(_LINE_MAX_BYTES), ''),
        lambda number, line: report_damage(
            '%s: line %d is not from perf stat -x: %r' % (path, number, line)
        ),
    )
    for interval in intervals:
        any_interval = True
        yield _to_sample(interval, names, minus)
    if not any_interval:
        raise RecordingError(
            '%s: neither a recording, nor samples, nor output of perf stat -x, -I' % path
        )


def _to_sample(
    interval: IntervalCounts, names: Mapping[str, str], minus: Mapping[str, str]
) -> Sample:
    """Return a sample from an interval of perf's counts.

    Counts without a control group, or of the root group '/', are those of nodes. Counts of the
    other groups are those of guests, which are named by the paths of their groups. Counts of the
    whole host or of a CPU are attributed to node 0, and this is reported.
    """
    nodes: dict[int, _DeltasByRole] = {}
    guests: dict[str, _DeltasByRole] = {}
    problems: dict[str, None] = {}
    for line in interval.lines:
        role = perf_stat.role_of(line.event, names)
        if not line.supported:
            problems['perf stat: %s is not supported there' % line.event] = None
        if role is None:
            continue
        node = line.id if line.scope == NODE_SCOPE else None
        if line.cgroup in ('', '/') and node is None:
            problems[
                'perf stat: nodes are not distinguished: everything is attributed to node 0'
            ] = None
        owner = (
            nodes.setdefault(node or 0, {})
            if line.cgroup in ('', '/')
            else (guests.setdefault(line.cgroup, {}))
        )
        owner.setdefault(role, []).append(perf_stat.amount(line, role))
    elapsed_ns = interval.elapsed_s * 1e9
    return Sample(
        interval.at_s,
        interval.elapsed_s,
        SOURCE,
        tuple(_node(node, _rates(nodes[node], minus, elapsed_ns)) for node in sorted(nodes)),
        tuple(_guest(path, guests[path], minus, elapsed_ns) for path in sorted(guests)),
        tuple(problems),
    )


def _rates(
    counts: _DeltasByRole, minus: Mapping[str, str], elapsed_ns: float
) -> dict[str, float | None]:
    """Return {role: rate per second, or None if unknown}.

    :param minus: the result of :func:`perf_stat.subtracted_roles`
    """
    totals = {role: rates.add(deltas) for role, deltas in counts.items()}
    for role in totals.keys() & minus.keys():
        totals[role] = rates.subtract(totals[role], totals.get(minus[role]))
    return {role: rates.per_sec(total, elapsed_ns) for role, total in totals.items()}


def _cpi(by_role: Mapping[str, float | None]) -> float | None:
    return rates.ratio(by_role.get(counter_roles.CYCLES), by_role.get(counter_roles.INSTRUCTIONS))


def _node(node_id: int, by_role: Mapping[str, float | None]) -> NodeSample:
    local, remote = by_role.get(counter_roles.LOCAL_DRAM), by_role.get(counter_roles.REMOTE_DRAM)
    return NodeSample(
        node_id,
        local_per_sec=local,
        remote_per_sec=remote,
        remote_ratio=rates.remote_ratio(local, remote),
        cpi=_cpi(by_role),
        bandwidth_bytes_per_sec=pressure.bandwidth_bytes_per_sec(
            by_role.get(counter_roles.MEM_READ), by_role.get(counter_roles.MEM_WRITE), 10**9
        ),
    )


def _guest(
    path: str, counts: _DeltasByRole, minus: Mapping[str, str], elapsed_ns: float
) -> GuestSample:
    by_role = _rates(counts, minus, elapsed_ns)
    local, remote = by_role.get(counter_roles.LOCAL_DRAM), by_role.get(counter_roles.REMOTE_DRAM)
    has_both = None not in (local, remote)
    shares = [delta.share for deltas in counts.values() for delta in deltas if delta]
    return GuestSample(
        path,
        path.rpartition('/')[2] or path,
        SOURCE if has_both else '',
        COUNTED if has_both else '',
        local_per_sec=local,
        remote_per_sec=remote,
        remote_ratio=rates.remote_ratio(local, remote),
        cpi=_cpi(by_role),
        accesses_per_1000_instructions=rates.accesses_per_1000_instructions(
            local, remote, by_role.get(counter_roles.INSTRUCTIONS)
        ),
        counted_ratio=min(shares, default=None),
        remote_cache_per_sec=by_role.get(counter_roles.REMOTE_CACHE),
        stalled_ratio=rates.stalled_ratio(
            by_role.get(counter_roles.STALLED_CYCLES), by_role.get(counter_roles.CYCLES)
        ),
    )
