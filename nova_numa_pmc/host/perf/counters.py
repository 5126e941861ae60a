# SPDX-License-Identifier: Apache-2.0
"""Keep counters open on targets that come and go: CPUs, threads and control groups.

:class:`Counters` reads them by target, :class:`OwnerCounters` what they counted by the owner of
targets (a guest or a node) since the last reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nova_numa_pmc.core import rates
from nova_numa_pmc.exceptions import (
    CounterError,
    CounterRefused,
    CountersExhausted,
    CounterTargetGone,
    SourceUnavailable,
)
from nova_numa_pmc.host.perf import perf_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.host.perf.events import Event
    from nova_numa_pmc.host.perf.perf_event import GroupReadings

    #: A target, and the events to count on it.
    Wanted = tuple[perf_event.Target, tuple[Event, ...]]
    #: A target, its events, its open groups, and the positions of the events that are not open.
    _Open = tuple[
        perf_event.Target, tuple[Event, ...], tuple[perf_event.EventGroup, ...], tuple[int, ...]
    ]
    #: What the events of each role counted; None: unknown.
    Deltas = dict[str, rates.CounterDelta | None]


#: A group that is enabled for longer has had its turn: the kernel changes turns at each tick.
_UNCOUNTED_MAX_NS = 10**9
#: The key that identifies a target.
_K = TypeVar('_K')


class Counters(Generic[_K]):
    """Counters on any number of targets, opened and closed as these change.

    A counter that cannot be opened is not an error: it reads as None.

    :ivar unsupported: {(event, kind of target): why it cannot be counted there}
    """

    def __init__(self) -> None:
        self._open: dict[_K, _Open] = {}
        self._enabled_ns: dict[_K, int | None] = {}  # of targets that are CPUs, at the last read
        #: {PMU: the most events of a group}; less than before after a group was never counted.
        self._group_max = dict(perf_event.GROUP_MAX)
        self.unsupported: dict[tuple[Event, str], str] = {}

    def __len__(self) -> int:
        """Return the number of open descriptors."""
        return sum(len(group.fds) for _, _, groups, _ in self._open.values() for group in groups)

    def update(self, wanted: Mapping[_K, Wanted]) -> tuple[CounterError, ...]:
        """Open and close counters so that exactly the wanted targets are counted.

        If the target of a key has changed (a thread id was reused, or a control group
        was created again under its name), its counters are closed and opened again.

        :returns: the errors of what could not be counted, but for unsupported events
        """
        for key in [
            key
            for key, (target, events, _, _) in self._open.items()
            if wanted.get(key, (None, None))[0] != target
            or (wanted[key][1] is not events and wanted[key][1] != events)
        ]:
            self._close(key)
        for key, (target, events) in wanted.items():
            if key in self._open:
                continue
            try:
                self._add(key, target, events)
            except CounterTargetGone:
                continue  # it has ended since it was listed
            except (CountersExhausted, CounterRefused) as error:
                return (error,)  # the others would fail as well; those open keep counting
        return ()

    def _add(self, key: _K, target: perf_event.Target, events: tuple[Event, ...]) -> None:
        try:
            groups, missing = perf_event.open_groups(events, target, self._group_max)
        except CountersExhausted:
            if not perf_event.raise_descriptor_limit():
                raise
            groups, missing = perf_event.open_groups(events, target, self._group_max)
        if isinstance(target.id, int) and perf_event.thread(target.id) != target:
            for group in groups:
                group.close()
            return  # the thread has ended, and its id may have been reused
        absent = {event for event, _ in missing}
        unopened = tuple(at for at, event in enumerate(events) if event in absent)
        self._open[key] = (target, events, groups, unopened)
        for event, error in missing:
            self.unsupported.setdefault((event, target.kind), str(error))

    def read(self) -> dict[_K, perf_event.GroupReadings]:
        """Return {key: counts}, in the order of the target's events."""
        readings: dict[_K, perf_event.GroupReadings] = {}
        dead = []
        for key, (target, _, groups, unopened) in self._open.items():
            # Usually all events are in one group, whose counts are returned as they are.
            counts = (
                groups[0].read()
                if len(groups) == 1
                else tuple([count for group in groups for count in group.read()])
            )
            readings[key] = counts
            if unopened:
                with_unopened = list(counts)
                for at in unopened:
                    with_unopened.insert(at, None)
                readings[key] = tuple(with_unopened)
            if target.kind == perf_event.CPU and (
                self._has_stopped(key, counts)
                or (_was_never_counted(counts) and self._split_uncounted(groups))
            ):
                dead.append(key)
        for key in dead:
            self._close(key)
        return readings

    def _has_stopped(self, key: _K, counts: perf_event.GroupReadings) -> bool:
        """Return whether a CPU's counters have stopped because the CPU went offline.

        The kernel then removes the events from their group and does not restore
        them when the CPU comes back; the next update opens them again.
        """
        times_ns = [count.enabled_ns for count in counts if count is not None]
        if len(times_ns) < len(counts):
            return True
        enabled_ns = min(times_ns, default=None)
        before, self._enabled_ns[key] = self._enabled_ns.get(key), enabled_ns
        return before is not None and before == enabled_ns

    def _split_uncounted(self, groups: Iterable[perf_event.EventGroup]) -> bool:
        """Allow a PMU only smaller groups if one was never counted; return whether one was not.

        Some drivers accept a group with more events than they have counters, and others may keep
        counters busy for good, as the NMI watchdog does. The next update opens smaller groups.
        """
        uncounted = [
            group.events[0].pmu
            for group in groups
            if len(group.events) > 1 and _was_never_counted(group.read())
        ]
        for pmu in uncounted:
            largest = max(len(group.events) for group in groups if group.events[0].pmu == pmu)
            self._group_max[pmu] = max(1, largest // 2)
        return bool(uncounted)

    def _close(self, key: _K) -> None:
        for group in self._open.pop(key)[2]:
            group.close()
        self._enabled_ns.pop(key, None)

    def close(self) -> None:
        """Close all counters."""
        for key in list(self._open):
            self._close(key)


def _was_never_counted(counts: perf_event.GroupReadings) -> bool:
    """Return whether a group has been enabled for long, and never counted."""
    return any(
        count is not None and count.running_ns == 0 and count.enabled_ns > _UNCOUNTED_MAX_NS
        for count in counts
    )


#: The owner of targets.
_O = TypeVar('_O')

#: A guest is known without the threads that got no counter if they ran for at most this share of
#: its time: a thread that hardly runs is often not given a turn, and hardly counts.
STARVED_MAX_RATIO = 0.1


class OwnerCounters(Generic[_O, _K]):
    """Counters of owners, which return the difference between two readings.

    If targets of an owner have come or gone, part of its counts is lost, so the owner is unknown
    for that tick.
    """

    def __init__(self) -> None:
        self._counters: Counters[tuple[_O, _K]] = Counters()
        self._before: dict[_O, dict[_K, GroupReadings]] = {}
        #: Time between the last two readings of each owner in ``sample`` [ns], by the kernel's
        #: clock; only for owners that are never idle.
        self.counted_ns: dict[_O, int] = {}

    def sample(
        self, wanted: Mapping[_O, Mapping[_K, Wanted]], idle_is_zero: bool
    ) -> tuple[dict[_O, Deltas], tuple[str, ...]]:
        """Open and close counters as wanted, read them, and subtract the previous reading.

        :param wanted: {owner: {key: (target, events)}}; the key distinguishes holders of an id
        :param idle_is_zero: as for :func:`rates.difference`
        :returns: ({owner: deltas summed over its targets}, problems as text). Amounts of data are
            in bytes. An owner whose targets have come or gone is absent
        :raises SourceUnavailable: the host can count nothing of this
        :raises CounterError: nothing can be counted, for another reason
        """
        wanted_by_key = {
            (owner, key): target
            for owner, targets in wanted.items()
            for key, target in targets.items()
        }
        errors = self._counters.update(wanted_by_key)
        problems = tuple(dict.fromkeys([*self._counters.unsupported.values(), *map(str, errors)]))
        if wanted_by_key and problems and not len(self._counters):
            raise CounterError(str(errors[0])) if errors else SourceUnavailable(problems[0])
        readings: dict[_O, dict[_K, GroupReadings]] = {owner: {} for owner in wanted}
        for (owner, key), reading in self._counters.read().items():
            readings[owner][key] = reading
        before, self._before = self._before, readings
        deltas: dict[_O, Deltas] = {}
        for owner, counts in readings.items():
            earlier = before.get(owner)
            if earlier and earlier.keys() == counts.keys() == wanted[owner].keys():
                deltas[owner] = _deltas(wanted[owner], earlier, counts, idle_is_zero)
                if not idle_is_zero:
                    self.counted_ns[owner] = _counted_ns(earlier, counts)
        return deltas, problems

    def close(self) -> None:
        """Close all counters and forget their readings."""
        self._counters.close()
        self._counters = Counters()
        self._before = {}


def _counted_ns(before: Mapping[_K, GroupReadings], after: Mapping[_K, GroupReadings]) -> int:
    """Return the time between two readings of counters that are always enabled; 0: unknown."""
    return max(
        (
            new.enabled_ns - old.enabled_ns
            for key in after
            for old, new in zip(before[key], after[key])
            if old and new
        ),
        default=0,
    )


def _deltas(
    targets: Mapping[_K, Wanted],
    before: Mapping[_K, GroupReadings],
    after: Mapping[_K, GroupReadings],
    idle_is_zero: bool,
) -> Deltas:
    """Return what was counted of one owner between two readings of its targets."""
    totals: dict[str, list[float] | None] = {}
    starved_ns: dict[str, int] = {}
    for key, new in after.items():
        _add(totals, starved_ns, targets[key][1], before[key], new, idle_is_zero)
    for role, uncounted_ns in starved_ns.items():
        enabled_ns = _enabled_ns(role, targets, before, after)
        totals[role] = _with_starved(totals[role], uncounted_ns, enabled_ns)
    return {
        role: None if total is None else rates.CounterDelta(*total)
        for role, total in totals.items()
    }


def _add(
    totals: dict[str, list[float] | None],
    starved_ns: dict[str, int],
    counted_events: Iterable[Event],
    before: GroupReadings,
    after: GroupReadings,
    idle_is_zero: bool,
) -> None:
    """Add what one target's events counted to the totals of their roles.

    :param totals: {role: [amount, smallest share]}, where None is unknown
    :param starved_ns: {role: time for which targets ran that got no counter}
    """
    for event, old, new in zip(counted_events, before, after):
        total = totals.setdefault(event.role, [0.0, 1.0])
        if old is new and idle_is_zero and new is not None:
            continue  # the same object is returned if the target has not run
        delta = rates.difference(old, new, idle_is_zero)
        if delta is None or total is None:
            if idle_is_zero and old and new and _is_starved(old, new):
                ran_ns = new.enabled_ns - old.enabled_ns
                starved_ns[event.role] = starved_ns.get(event.role, 0) + ran_ns
            else:
                totals[event.role] = None
        else:
            value, share = delta
            total[0] += value * (event.bytes_per_count or 1)
            total[1] = min(total[1], share)


def _is_starved(before: rates.CounterReading, after: rates.CounterReading) -> bool:
    """Return whether a target ran but got no counter between two readings."""
    return after.running_ns == before.running_ns and after.enabled_ns > before.enabled_ns


def _enabled_ns(
    role: str,
    targets: Mapping[_K, Wanted],
    before: Mapping[_K, GroupReadings],
    after: Mapping[_K, GroupReadings],
) -> int:
    """Return for how long an owner's targets ran, summed over the events of a role."""
    return sum(
        new.enabled_ns - old.enabled_ns
        for key, (_, counted_events) in targets.items()
        for event, old, new in zip(counted_events, before[key], after[key])
        if event.role == role and old and new
    )


def _with_starved(
    total: list[float] | None, starved_ns: int, enabled_ns: int
) -> list[float] | None:
    """Return a total that is scaled to include the targets that got no counter.

    :returns: None if these ran for too much of the time
    """
    if total is None or starved_ns > STARVED_MAX_RATIO * enabled_ns:
        return None
    counted_ratio = 1 - starved_ns / enabled_ns
    return [total[0] / counted_ratio, min(total[1], counted_ratio)]
