# SPDX-License-Identifier: Apache-2.0
"""Keep counters open on targets that come and go: CPUs, threads and control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nova_numa_pmc import exceptions
from nova_numa_pmc.host.perf import perf_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.host.perf.events import Event

    #: A target, and the events to count on it.
    Wanted = tuple[perf_event.Target, tuple[Event, ...]]
    #: A target, its events, its open groups, and each event's position among the counts of these
    #: groups, which is None for an event that is not open. Without positions, the counts are those
    #: of the only group, in its order.
    _Open = tuple[
        perf_event.Target,
        tuple[Event, ...],
        tuple[perf_event.EventGroup, ...],
        tuple[int | None, ...] | None,
    ]

#: A group that is enabled for longer has had its turn: the kernel changes turns at each tick.
_UNCOUNTED_MAX_NS = 10**9
#: The key that identifies a target.
_K = TypeVar('_K')


class Counters(Generic[_K]):
    """Counters on any number of targets, opened and closed as these change.

    A counter that cannot be opened is not an error: it reads as None, and :meth:`update` reports
    each unsupported event only once.
    """

    def __init__(self) -> None:
        self._open: dict[_K, _Open] = {}
        self._enabled_ns: dict[_K, int | None] = {}  # of targets that are CPUs, at the last read
        #: {PMU: the most events of a group}; less than before after a group was never counted.
        self._group_max = dict(perf_event.GROUP_MAX)
        self._reported: set[tuple[Event, str]] = set()  # unsupported events, by kind of target

    def __len__(self) -> int:
        """Return the number of open descriptors."""
        return sum(len(group.fds) for _, _, groups, _ in self._open.values() for group in groups)

    def update(self, wanted: Mapping[_K, Wanted]) -> tuple[exceptions.CounterError, ...]:
        """Open and close counters so that exactly the wanted targets are counted.

        If the target of a key has changed (a thread id was reused, or a control group
        was created again under its name), its counters are closed and opened again.

        :returns: the errors of what could not be counted
        """
        for key in [
            key
            for key, (target, events, _, _) in self._open.items()
            if wanted.get(key, (None, None))[0] != target
            or (wanted[key][1] is not events and wanted[key][1] != events)
        ]:
            self._close(key)
        errors: list[exceptions.CounterError] = []
        for key, (target, events) in wanted.items():
            if key in self._open:
                continue
            try:
                self._add(key, target, events, errors)
            except exceptions.CounterTargetGone:
                continue  # it has ended since it was listed
            except (exceptions.CountersExhausted, exceptions.CounterRefused) as error:
                errors.append(error)
                break  # the others would fail as well; those that are open keep counting
        return tuple(errors)

    def _add(
        self,
        key: _K,
        target: perf_event.Target,
        events: tuple[Event, ...],
        errors: list[exceptions.CounterError],
    ) -> None:
        try:
            groups, missing = perf_event.open_groups(events, target, self._group_max)
        except exceptions.CountersExhausted:
            if not perf_event.raise_descriptor_limit():
                raise
            groups, missing = perf_event.open_groups(events, target, self._group_max)
        if isinstance(target.id, int) and perf_event.thread(target.id) != target:
            for group in groups:
                group.close()
            return  # the thread has ended, and its id may have been reused
        # Usually all events are in one group, whose counts are returned as they are.
        positions = None if len(groups) == 1 and not missing else _positions(events, missing)
        self._open[key] = (target, events, groups, positions)
        for event, error in missing:
            if (event, target.kind) not in self._reported:
                self._reported.add((event, target.kind))
                errors.append(error)

    def read(self) -> dict[_K, perf_event.GroupReadings]:
        """Return {key: counts}, in the order of the target's events."""
        readings: dict[_K, perf_event.GroupReadings] = {}
        dead = []
        for key, (target, _, groups, positions) in self._open.items():
            if positions is None:
                counts = readings[key] = groups[0].read()
            else:
                counts = tuple([count for group in groups for count in group.read()])
                readings[key] = tuple(
                    None if position is None else counts[position] for position in positions
                )
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


def _positions(
    events: Sequence[Event], missing: Iterable[tuple[Event, object]]
) -> tuple[int | None, ...]:
    """Return each event's position among those that were opened; None if it was not opened."""
    absent = {event for event, _ in missing}
    next_position = iter(range(len(events)))
    return tuple(None if event in absent else next(next_position) for event in events)


def uncore_targets(events: Iterable[Event]) -> dict[tuple[str, int], Wanted]:
    """Return the targets of uncore events as {(PMU, CPU): (target, events)}.

    Each box is read once per package, on the CPU that its ``cpumask`` names.
    """
    wanted: dict[tuple[str, int], Wanted] = {}
    for event in events:
        for cpu in event.cpus or ():
            target, events_there = wanted.get((event.pmu, cpu), (perf_event.on_cpu(cpu), ()))
            wanted[event.pmu, cpu] = target, (*events_there, event)
    return wanted
