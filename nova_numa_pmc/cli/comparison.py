# SPDX-License-Identifier: Apache-2.0
"""Means of a recording, and their comparison with those of another.

Means are over the time for which a value was known. Amounts of a host are the sums over its nodes,
unknown while that of any node is unknown; its pressure is that of the node with the highest. The
remote share is Σ remote ÷ Σ (local + remote) or, if the source has only ratios, their mean.
Samples have CPI but no cycles: with core-seconds c in their place, which assumes equal clock
rates, IPC = Σ (c ÷ CPI) ÷ Σ c. Where the CPU time is unknown, c is the time.
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING

from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Optional, Union

    from nova_numa_pmc.sample_records import GuestSample, NodeSample, Sample

    _Part = Union[GuestSample, NodeSample]
    #: ('host', ''), ('node', its id) or ('guest', its uuid)
    Key = tuple[str, Union[int, str]]
    #: (mean before, mean after)
    Pair = tuple[Optional[float], Optional[float]]

_SUMMED = (
    'local_per_sec',
    'remote_per_sec',
    'bandwidth_bytes_per_sec',
    'cores',
    'waiting_cores',
    'distance_cores',
)
#: The metrics, in their order.
METRICS = ('ipc', *_SUMMED[:2], 'remote_ratio', *_SUMMED[2:], 'pressure')


class Means:
    """Sums from which the means of the host, of a node or of a guest follow."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])

    def add(self, parts: Sequence[_Part], seconds: float) -> None:
        """Add a sample: one node or guest, or all nodes of the host."""
        cores = [getattr(part, 'cores', part.demand_cores) for part in parts]
        for metric in _SUMMED:
            known = all_known(
                cores if metric == 'cores' else [getattr(part, metric, None) for part in parts]
            )
            self._add(metric, math.fsum(known) if known else None, seconds)
        pressures = [getattr(part, 'pressure', None) for part in parts]
        self._add('pressure', max((p for p in pressures if p is not None), default=None), seconds)
        for part, used_cores in zip(parts, cores):
            weight = seconds * (1.0 if used_cores is None else used_cores)
            self._add('remote_ratio', part.remote_ratio, weight)
            self._add('ipc', 1 / part.cpi if part.cpi and part.cpi_reliable else None, weight)

    def _add(self, metric: str, value: float | None, weight: float) -> None:
        if value is not None:
            totals = self._totals[metric]
            totals[0] += value * weight
            totals[1] += weight

    def __getitem__(self, metric: str) -> float | None:
        """Return a mean; None: unknown."""
        total, weight = self._totals[metric]
        mean = total / weight if weight else None
        if metric == 'remote_ratio':
            local, remote = self['local_per_sec'], self['remote_per_sec']
            if local is not None and remote is not None:
                return remote / (local + remote) if local + remote else None
        return mean


class Recorded(Record):
    """The means of a recording.

    :param sources: sources of the host's samples
    :param last: the last sample
    """

    means: dict[Key, Means]
    sources: tuple[str, ...]
    problems: tuple[str, ...]
    samples: int
    seconds: float
    last: Sample


class Compared(Record):
    """The host, a node or a guest.

    :param metrics: {metric: (mean before, mean after)} of those that are known in either
    """

    name: str
    metrics: dict[str, Pair]


def gather(samples: Iterable[Sample]) -> Recorded:
    """Return the means of samples, of which there is at least one."""
    means: dict[Key, Means] = {}
    sources: dict[str, None] = {}
    problems: dict[str, None] = {}
    count, elapsed_s = 0, 0.0
    for sample in samples:
        count, elapsed_s = count + 1, elapsed_s + sample.elapsed_s
        sources[sample.source] = None
        problems.update(dict.fromkeys(sample.problems))
        parts: list[tuple[Key, str, Sequence[_Part]]] = [
            (('host', ''), 'host', sample.nodes),
            *((('node', node.id), 'node %d' % node.id, (node,)) for node in sample.nodes),
            *((('guest', guest.uuid), guest.name, (guest,)) for guest in sample.guests),
        ]
        for key, name, records in parts:
            means.setdefault(key, Means(name)).add(records, sample.elapsed_s)
    return Recorded(means, tuple(sources), tuple(problems), count, elapsed_s, sample)


def compare(before: Recorded, after: Recorded | None = None) -> dict[Key, Compared]:
    """Return the host, nodes and guests of one or two recordings, guests by name."""
    names = {
        key: means.name
        for recorded in (before, after)
        if recorded
        for key, means in recorded.means.items()
    }

    def order(key: Key) -> tuple[int, int | str]:
        kind, id_ = key
        return ('host', 'node', 'guest').index(kind), names[key] if kind == 'guest' else id_

    def mean(recorded: Recorded | None, key: Key, metric: str) -> float | None:
        return recorded.means[key][metric] if recorded and key in recorded.means else None

    compared = {}
    for key in sorted(names, key=order):
        pairs = {m: (mean(before, key, m), mean(after, key, m)) for m in METRICS}
        compared[key] = Compared(
            names[key], {m: pair for m, pair in pairs.items() if pair != (None, None)}
        )
    return compared
