# SPDX-License-Identifier: Apache-2.0
"""Summarise the log of shadow mode: what would have changed, and how the hosts fared later."""

from __future__ import annotations

import bisect
import json
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import json_values
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.exceptions import require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import shadow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Times after a decision at which the pressures of its hosts are looked up again [s].
LATER_S = 3600, 86400
#: A line is used for such a time if it is later by no more than this part of that time.
_LATER_TOLERANCE_RATIO = 0.5
#: A line about the same instance is no decision of its own within this time [s].
_REPEAT_MAX_S = 10
_LINE_MAX, _SECONDS_MAX = 65536, 1e11
_JSON = json.JSONDecoder()


class ShadowDecision(Record):
    """A decision, as a line describes it.

    :param decided_s: the time of the decision [s since the epoch]
    :param chosen: the host that Nova chose
    :param preferred: the host that our weigher preferred
    :param pressures: {host: the pressure that the guest would leave there}, for the hosts that the
        line names and whose pressure is known
    :param losses: what guests would lose on the chosen and on the preferred host because of the
        new one, as a share of the CPU time that it wants; None if the line does not say
    :param instance: the uuid of the guest; None if the line does not say
    """

    decided_s: float
    chosen: str
    preferred: str
    pressures: dict[str, float]
    losses: tuple[float | None, float | None] = (None, None)
    instance: str | None = None

    @property
    def changed(self) -> bool:
        """Return whether our weigher would have had another host chosen."""
        return self.chosen != self.preferred


class PairedMeans(Record):
    """Means over a number of decisions, of the chosen and of the preferred hosts."""

    decisions: int
    chosen: float
    preferred: float


class ShadowSummary(Record):
    """Summary of a log.

    :param pressure: mean pressures at the time of the decisions that would have changed; None if
        there are none
    :param loss: mean losses of the same decisions; None if there are none
    :param later: {seconds: mean pressures that much later}, over those of the same decisions whose
        hosts a line at about that time names
    :param unreadable: number of lines that could not be read
    """

    decisions: int
    changed: int
    first_s: float
    last_s: float
    pressure: PairedMeans | None
    loss: PairedMeans | None
    later: dict[int, PairedMeans]
    unreadable: int


def decisions(lines: Iterable[str]) -> Iterator[ShadowDecision | None]:
    """Yield the decisions in the lines of a log; None for a decision that cannot be read."""
    for line in lines:
        if shadow.MARK in line:
            text = _message(line).partition(shadow.MARK)[2]
            try:
                # Formats with colours, such as DevStack's, append an escape sequence.
                yield _decision(_JSON.raw_decode(text[:_LINE_MAX])[0])
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                yield None


def _message(line: str) -> str:
    """Return the message in a line of JSON, which oslo.log (use_json) or Docker has written."""
    for key in ('log', 'message'):  # in this order: Docker's line contains that of oslo.log
        if line.startswith('{'):
            try:
                text = json.loads(line[:_LINE_MAX])[key]
            except (ValueError, KeyError, RecursionError):
                continue  # not such a line
            line = text if type(text) is str else line
    return line


def _decision(data: Any) -> ShadowDecision:
    require_major(data['version'], shadow.VERSION)
    named, instance = [data['chosen'], *data['top']], data.get('instance')
    return ShadowDecision(
        json_values.member('at', json_values.number, data['at'], _SECONDS_MAX),
        _name(data['chosen']),
        _name(data['top'][0]),
        {
            _name(host): json_values.member(
                'pressure', json_values.number, host['pressure'], ranking.PRESSURE_MAX
            )
            for host in named
            if host['pressure'] is not None
        },
        (_loss(data['chosen']), _loss(data['top'][0])),
        instance if type(instance) is str else None,
    )


def _loss(data: Any) -> float | None:
    value = data.get('loss')
    return None if value is None else json_values.member('loss', json_values.number, value, 1.0)


def _name(data: Any) -> str:
    name = data['host']
    if type(name) is not str or not name.isprintable():
        raise ValueError
    return name


def summarise(logged: Iterable[ShadowDecision | None]) -> ShadowSummary:
    """Return a summary of decisions; None stands for one that could not be read."""
    readable, unreadable = [], 0
    for decision in logged:
        if decision is None:
            unreadable += 1
        else:
            readable.append(decision)
    readable.sort(key=lambda decision: decision.decided_s)
    readable = list(_without_repeats(readable))
    history: dict[str, tuple[list[float], list[float]]] = {}
    for decision in readable:
        for host, pressure in decision.pressures.items():
            times, pressures = history.setdefault(host, ([], []))
            times.append(decision.decided_s)
            pressures.append(pressure)
    changed = [decision for decision in readable if decision.changed]
    later = {
        seconds: _means(
            (
                _later_pressure(history, decision.chosen, decision.decided_s, seconds),
                _later_pressure(history, decision.preferred, decision.decided_s, seconds),
            )
            for decision in changed
        )
        for seconds in LATER_S
    }
    return ShadowSummary(
        len(readable),
        len(changed),
        readable[0].decided_s if readable else 0.0,
        readable[-1].decided_s if readable else 0.0,
        _means(
            (decision.pressures.get(decision.chosen), decision.pressures.get(decision.preferred))
            for decision in changed
        ),
        _means(decision.losses for decision in changed),
        {seconds: means for seconds, means in later.items() if means},
        unreadable,
    )


def _without_repeats(logged: Iterable[ShadowDecision]) -> Iterator[ShadowDecision]:
    """Yield the decisions except for those that Nova did not make.

    For several instances with alternates, Nova weighs the hosts once more, with the uuid of the
    last instance, to choose the alternates (_get_alternate_hosts in nova/scheduler/manager.py).

    :param logged: decisions in the order of their times
    """
    decided_s: dict[str, float] = {}
    for decision in logged:
        if decision.instance is not None:
            before_s = decided_s.get(decision.instance)
            if before_s is not None and decision.decided_s - before_s <= _REPEAT_MAX_S:
                continue
            decided_s[decision.instance] = decision.decided_s
        yield decision


def _later_pressure(
    history: dict[str, tuple[list[float], list[float]]], host: str, decided_s: float, seconds: int
) -> float | None:
    """Return a host's pressure in the first line this much later; None if there is none."""
    times, pressures = history.get(host, ([], []))
    position = bisect.bisect_left(times, decided_s + seconds)
    if (
        position == len(times)
        or times[position] > decided_s + (1 + _LATER_TOLERANCE_RATIO) * seconds
    ):
        return None
    return pressures[position]


def _means(pairs: Iterable[tuple[float | None, float | None]]) -> PairedMeans | None:
    known_pairs = [
        (chosen, preferred)
        for chosen, preferred in pairs
        if chosen is not None and preferred is not None
    ]
    if not known_pairs:
        return None
    count = len(known_pairs)
    return PairedMeans(
        count,
        sum(chosen for chosen, _ in known_pairs) / count,
        sum(preferred for _, preferred in known_pairs) / count,
    )
