# SPDX-License-Identifier: Apache-2.0
"""Publish measurements for the libvirt hook, in the file ``pools`` in the state directory.

The file has the same figures as the publication, but as text with tab-separated columns, because
importing a JSON parser takes the hook as long as starting Python::

    nova-numa-pmc-pools  1.2  <boot id>  <measured: CLOCK_BOOTTIME, ns>  <interval, ms>
    pool  <CPU list>
    node  <id>  <demand>  <bandwidth>  <its maximum>  <link>  <vCPUs>  <stolen>
    guests  <how many>  <cores per vCPU>
    end   <rows>

A ``pool`` is followed by its nodes. ``guests`` has the number of guests whose demand is known, and
the sum of their demand per vCPU. Amounts are whole numbers in the units of Nova's metrics: 0.01
cores, MB/s, 0.001 of the link, 0.01 vCPUs; ``-`` is unknown. A reader accepts any minor version of
its own major version, and ignores rows of other kinds and additional columns. The last column of a
node was added in 1.1, and ``guests`` in 1.2. The file is replaced by rename(2), and any user may
read it.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import format_cpulist, is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, StateError, require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = 'pools'
#: A publication is stale after this many intervals, each of which counts as at most
#: :data:`_INTERVAL_MAX_S`, but not before :data:`STALE_MIN_S`.
_STALE_INTERVALS = 3
STALE_MIN_S = 30.0
_INTERVAL_MAX_S = 600.0

_MAGIC = 'nova-numa-pmc-pools'
_MAJOR, _MINOR = 1, 2
_SIZE_MAX_BYTES = 4 << 20
_INTEGER_MAX = 2**60
_COLUMNS = 7


class PoolLoads(Record):
    """Measured loads of a host's pools: the content of the file.

    :param boot_id: boot id of the kernel at the time of the measurement
    :param taken_ns: CLOCK_BOOTTIME of the measurement
    :param interval_s: length of the measurement, which is also the period of publication
    :param pools: measured load of each pool, beginning with the floating pool
    :param history: demand of the host's guests, from which that of new guests is estimated
    """

    boot_id: str
    taken_ns: int
    interval_s: float
    pools: tuple[model.PoolLoad, ...]
    history: model.DemandHistory = model.DemandHistory()


def stale_after_s(interval_s: float) -> float:
    """Return the age [s] above which a publication is stale, given how often it is replaced."""
    return max(STALE_MIN_S, _STALE_INTERVALS * min(interval_s, _INTERVAL_MAX_S))


class PlacementEvidence(Record):
    """The measurements that a decision on this host is based on.

    :param summary: text such as 'the pressure measured 3 s ago' or 'promises alone: the agent has
        published nothing'
    :param loads: (node id, load); empty if there are no measurements that can be used
    :param vcpus: (node id, vCPUs of the guests that are included in its load)
    :param problems: problems to be logged
    :param history: as in :class:`PoolLoads`
    """

    summary: str
    loads: tuple[tuple[int, model.NodeLoad], ...] = ()
    vcpus: tuple[tuple[int, float], ...] = ()
    problems: tuple[str, ...] = ()
    history: model.DemandHistory = model.DemandHistory()


def read_evidence(
    directory: str,
    boot_id: str,
    boottime_ns: int,
    own_cpus: frozenset[int],
    avoids_floating_pool: bool,
) -> PlacementEvidence:
    """Return the evidence for the start of a guest, without loads if the file cannot be used.

    :param directory: path of the state directory
    :param boottime_ns: CLOCK_BOOTTIME
    :param own_cpus: CPUs of the guest's own pool; if that pool is not published, the floating
        pool is used
    :param avoids_floating_pool: whether ``own_cpus`` has none of the floating pool's CPUs, so that
        its load does not apply
    """
    try:
        loads = read(directory)
    except StateError as error:
        return PlacementEvidence(
            'promises alone: the publication cannot be read', problems=(str(error),)
        )
    if loads is None or not loads.pools:
        return PlacementEvidence('promises alone: the agent has published nothing')
    age_s = (boottime_ns - loads.taken_ns) / 1e9
    if loads.boot_id != boot_id or age_s < -STALE_MIN_S:
        return PlacementEvidence('promises alone: the publication is from another boot')
    if age_s > stale_after_s(loads.interval_s):
        return PlacementEvidence('promises alone: the publication is %.0f s old' % age_s)
    pool = None if avoids_floating_pool else loads.pools[0]
    for own_pool in loads.pools[1:]:
        if own_pool.cpus == own_cpus:
            pool = own_pool
    if pool is None:
        return PlacementEvidence("promises alone: the guest's CPUs were not measured")
    return PlacementEvidence(
        'the pressure measured %.0f s ago' % max(0, age_s),
        pool.loads,
        pool.vcpus,
        history=loads.history,
    )


def encode(loads: PoolLoads) -> bytes:
    """Return the loads as the file's bytes."""
    lines = [
        '%s\t%d.%d\t%s\t%d\t%d'
        % (_MAGIC, _MAJOR, _MINOR, loads.boot_id, loads.taken_ns, round(1000 * loads.interval_s))
    ]
    for pool in loads.pools:
        lines.append('pool\t' + format_cpulist(pool.cpus))
        vcpus = dict(pool.vcpus)
        for node, load in pool.loads:
            lines.append(
                'node\t%d\t%s\t%s\t%s\t%s\t%d\t%s'
                % (
                    node,
                    _amount(load.demand_cores, 100),
                    _amount(load.bandwidth_bytes_per_sec, 1 / model.MB),
                    _amount(load.bandwidth_max_bytes_per_sec, 1 / model.MB),
                    _amount(load.link_ratio, 1000),
                    round(100 * vcpus.get(node, 0)),
                    _amount(load.stolen_cores, 100),
                )
            )
    if loads.history.guests:
        lines.append(
            'guests\t%d\t%d'
            % (loads.history.guests, round(100 * loads.history.cores_per_vcpu_sum))
        )
    lines.append('end\t%d\n' % (len(lines) - 1))
    return '\n'.join(lines).encode('ascii')


def decode(data: bytes) -> PoolLoads:
    """Parse the file's bytes.

    :raises StateError: this is not such a file, is truncated, or is of another major version
    """
    try:
        return _decode(data.decode('ascii').split('\n'))
    except (ValueError, IndexError, CpuListError) as error:
        raise StateError('%s' % error) from None


def write(directory: str, loads: PoolLoads) -> None:
    """Replace the file in the state directory.

    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    state_files.write(directory, FILE, encode(loads))


def read(directory: str) -> PoolLoads | None:
    """Read the file in the state directory; return None if there is none.

    :raises StateError: the file cannot be used; the message names it and the remedy
    """
    data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    if data is None:
        return None
    try:
        return decode(data)
    except StateError as error:
        raise StateError(
            '%s: %s: nova-numa-agent replaces the file; run the same release of agent and hook'
            % (os.path.join(directory, FILE), error)
        ) from None


def _decode(lines: Sequence[str]) -> PoolLoads:
    header = lines[0].split('\t')
    if header[0] != _MAGIC or len(header) < 5:
        raise ValueError('not a file of nova-numa-pmc: unexpected first line')
    _, version, boot_id, taken_ns, interval_ms = header[:5]
    require_major(version, _MAJOR)
    if lines[-1] or lines[-2].split('\t') != ['end', '%d' % (len(lines) - 3)]:
        raise ValueError('truncated')
    history = model.DemandHistory()
    pools: list[
        tuple[frozenset[int], list[tuple[int, model.NodeLoad]], list[tuple[int, float]]]
    ] = []
    for line in lines[1:-2]:
        columns = line.split('\t')
        if columns[0] == 'pool':
            pools.append((parse_cpulist(columns[1]), [], []))
        elif columns[0] == 'node':
            node, load, vcpus = _node(columns)
            pools[-1][1].append((node, load))
            pools[-1][2].append((node, vcpus))
        elif columns[0] == 'guests':
            history = model.DemandHistory(_integer(columns[1]), _integer(columns[2]) / 100)
    return PoolLoads(
        boot_id,
        _integer(taken_ns),
        _integer(interval_ms) / 1000,
        tuple(model.PoolLoad(cpus, tuple(loads), tuple(vcpus)) for cpus, loads, vcpus in pools),
        history,
    )


def _node(columns: Sequence[str]) -> tuple[int, model.NodeLoad, float]:
    """Return (node id, its load, vCPUs that are included in the load)."""
    if len(columns) < _COLUMNS:
        raise ValueError('a node row has only %d columns' % len(columns))
    node, demand, bandwidth, maximum, link, vcpus = map(_integer_or_none, columns[1:_COLUMNS])
    stolen = _integer_or_none(columns[_COLUMNS]) if len(columns) > _COLUMNS else None
    if node is None or vcpus is None:
        raise ValueError('a node row without an id or vCPUs')
    return (
        node,
        model.NodeLoad(
            None if demand is None else demand / 100,
            None if bandwidth is None else bandwidth * model.MB,
            None if maximum is None else maximum * model.MB,
            None if link is None else link / 1000,
            None if stolen is None else stolen / 100,
        ),
        vcpus / 100,
    )


def _amount(value: float | None, per_unit: float) -> str:
    return '-' if value is None else '%d' % round(value * per_unit)


def _integer_or_none(text: str) -> int | None:
    return None if text == '-' else _integer(text)


def _integer(text: str) -> int:
    if not is_number(text) or int(text) > _INTEGER_MAX:
        raise ValueError('unexpected value %.40r' % text)
    return int(text)
