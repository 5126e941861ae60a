# SPDX-License-Identifier: Apache-2.0
"""Sum up the lines that shadow mode logged: what would have changed, and how hosts fared later."""

from __future__ import annotations

import bisect
import json
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import checked
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.exceptions import require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import shadow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: How long after a decision its hosts are looked at again [s].
LATER_S = 3600, 86400
#: A later line counts for a host within this part of that time.
_LATER_TOLERANCE_RATIO = 0.5
_LINE_MAX, _SECONDS_MAX = 65536, 1e11


class ShadowDecision(Record):
    """A decision: its time [s since the epoch], its host, and the one that our weigher preferred.

    :param pressures: {host: the pressure that the guest would leave there}, of those that the
        line names and whose pressure is known
    :param losses: what guests would lose on the two hosts because of the new one, as a share of
        what it wants; None: the line does not say
    """

    taken_s: float
    chosen: str
    preferred: str
    pressures: dict[str, float]
    losses: tuple[float | None, float | None] = (None, None)

    @property
    def changed(self) -> bool:
        """Return whether another host would have been chosen."""
        return self.chosen != self.preferred


class PairedMeans(Record):
    """Means of the chosen and the preferred host over this many decisions."""

    decisions: int
    chosen: float
    preferred: float


class ShadowSummary(Record):
    """Summary of a log.

    :param then: pressures, of the decisions that would have changed
    :param loss: losses, likewise
    :param later: {seconds: of those of them whose hosts a line that much later shows}
    :param broken: lines that could not be read
    """

    decisions: int
    changed: int
    first_s: float
    last_s: float
    then: PairedMeans | None
    loss: PairedMeans | None
    later: dict[int, PairedMeans]
    broken: int


def decisions(lines: Iterable[str]) -> Iterator[ShadowDecision | None]:
    """Yield the decisions among the lines of a log; None for one that cannot be read."""
    for line in lines:
        _, mark, text = line.partition(shadow.MARK)
        if mark:
            try:
                yield _decision(json.loads(text[:_LINE_MAX]))
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                yield None


def _decision(data: Any) -> ShadowDecision:
    require_major(data['version'], shadow.VERSION)
    named = [data['chosen'], *data['top']]
    return ShadowDecision(
        checked.member('at', checked.number, data['at'], _SECONDS_MAX),
        _name(data['chosen']),
        _name(data['top'][0]),
        {
            _name(host): checked.member(
                'pressure', checked.number, host['pressure'], ranking.PRESSURE_MAX
            )
            for host in named
            if host['pressure'] is not None
        },
        (_loss(data['chosen']), _loss(data['top'][0])),
    )


def _loss(data: Any) -> float | None:
    value = data.get('loss')
    return None if value is None else checked.member('loss', checked.number, value, 1.0)


def _name(data: Any) -> str:
    name = data['host']
    if type(name) is not str or not name.isprintable():
        raise ValueError
    return name


def sum_up(logged: Iterable[ShadowDecision | None]) -> ShadowSummary:
    """Sum decisions up."""
    known, broken = [], 0
    for decision in logged:
        if decision is None:
            broken += 1
        else:
            known.append(decision)
    known.sort(key=lambda decision: decision.taken_s)
    seen: dict[str, tuple[list[float], list[float]]] = {}
    for decision in known:
        for host, pressure in decision.pressures.items():
            times, pressures = seen.setdefault(host, ([], []))
            times.append(decision.taken_s)
            pressures.append(pressure)
    changed = [decision for decision in known if decision.changed]
    later = {
        seconds: _means(
            (
                _later_pressure(seen, decision.chosen, decision.taken_s, seconds),
                _later_pressure(seen, decision.preferred, decision.taken_s, seconds),
            )
            for decision in changed
        )
        for seconds in LATER_S
    }
    return ShadowSummary(
        len(known),
        len(changed),
        known[0].taken_s if known else 0.0,
        known[-1].taken_s if known else 0.0,
        _means(
            (decision.pressures.get(decision.chosen), decision.pressures.get(decision.preferred))
            for decision in changed
        ),
        _means(decision.losses for decision in changed),
        {seconds: means for seconds, means in later.items() if means},
        broken,
    )


def _later_pressure(
    seen: dict[str, tuple[list[float], list[float]]], host: str, taken_s: float, seconds: int
) -> float | None:
    """Return a host's pressure in the first line this much later, None: there is none."""
    times, pressures = seen.get(host, ([], []))
    at = bisect.bisect_left(times, taken_s + seconds)
    if at == len(times) or times[at] > taken_s + (1 + _LATER_TOLERANCE_RATIO) * seconds:
        return None
    return pressures[at]


def _means(pairs: Iterable[tuple[float | None, float | None]]) -> PairedMeans | None:
    known = [
        (chosen, preferred)
        for chosen, preferred in pairs
        if chosen is not None and preferred is not None
    ]
    if not known:
        return None
    count = len(known)
    return PairedMeans(
        count,
        sum(chosen for chosen, _ in known) / count,
        sum(preferred for _, preferred in known) / count,
    )
