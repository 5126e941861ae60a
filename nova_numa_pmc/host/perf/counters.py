# SPDX-License-Identifier: Apache-2.0
"""Keep counters open on targets that come and go: CPUs, threads, control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nova_numa_pmc import exceptions
from nova_numa_pmc.host.perf import perf_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.host.perf.events import Event

    #: What is counted, and its events.
    Wanted = tuple[perf_event.Target, tuple[Event, ...]]
    #: The same, what is open of it, and each event's place among the counts of these groups,
    #: None: the event is not open. No places: the counts are those of the one group.
    _Open = tuple[
        perf_event.Target,
        tuple[Event, ...],
        tuple[perf_event.EventGroup, ...],
        tuple[int | None, ...] | None,
    ]

#: What distinguishes targets.
_K = TypeVar('_K')


class Counters(Generic[_K]):
    """Counters on any number of targets, opened and closed as these change.

    It degrades instead of failing: a counter that cannot be opened reads as None, and
    :meth:`update` reports it once.
    """

    def __init__(self) -> None:
        self._open: dict[_K, _Open] = {}
        self._enabled_ns: dict[_K, int | None] = {}  # when last read, for CPUs
        self._reported: set[tuple[Event, str]] = set()  # kinds of target that lack the event

    def __len__(self) -> int:
        """Return the number of open descriptors."""
        return sum(len(group.fds) for _, _, groups, _ in self._open.values() for group in groups)

    def update(self, wanted: Mapping[_K, Wanted]) -> tuple[exceptions.CounterError, ...]:
        """Open and close counters so that exactly the wanted targets are counted.

        A target that changed under its key (a thread id used again, a control
        group created again under its name) is closed and opened again.

        :returns: what could not be counted
        """
        for key in [
            key
            for key, (target, events, _, _) in self._open.items()
            if wanted.get(key, (None, None))[0] != target
            or (wanted[key][1] is not events and wanted[key][1] != events)
        ]:
            self._close(key)
        problems: list[exceptions.CounterError] = []
        for key, (target, events) in wanted.items():
            if key in self._open:
                continue
            try:
                self._add(key, target, events, problems)
            except exceptions.CounterTargetGone:
                continue  # it ended between being listed and now
            except (exceptions.CountersExhausted, exceptions.CounterRefused) as error:
                problems.append(error)
                break  # the others would fail alike; what is open goes on
        return tuple(problems)

    def _add(
        self,
        key: _K,
        target: perf_event.Target,
        events: tuple[Event, ...],
        problems: list[exceptions.CounterError],
    ) -> None:
        try:
            groups, missing = perf_event.open_groups(events, target)
        except exceptions.CountersExhausted:
            if not perf_event.raise_descriptor_limit():
                raise
            groups, missing = perf_event.open_groups(events, target)
        if isinstance(target.id, int) and perf_event.thread(target.id) != target:
            for group in groups:
                group.close()
            return  # the thread has ended, and its id may be reused
        # Usually all events are in one group, whose counts are the reading.
        places = None if len(groups) == 1 and not missing else _places(events, missing)
        self._open[key] = (target, events, groups, places)
        for event, error in missing:
            if (event, target.kind) not in self._reported:
                self._reported.add((event, target.kind))
                problems.append(error)

    def read(self) -> dict[_K, perf_event.GroupReadings]:
        """Return key → counts, in the order of its events."""
        readings: dict[_K, perf_event.GroupReadings] = {}
        dead = []
        for key, (target, _, groups, places) in self._open.items():
            if places is None:
                counts = readings[key] = groups[0].read()
            else:
                counts = tuple([count for group in groups for count in group.read()])
                readings[key] = tuple(None if place is None else counts[place] for place in places)
            if target.kind == perf_event.CPU and self._stands_still(key, counts):
                dead.append(key)
        for key in dead:
            self._close(key)
        return readings

    def _stands_still(self, key: _K, counts: perf_event.GroupReadings) -> bool:
        """Return whether a CPU's counters have stopped: it went offline since they were opened.

        The kernel removes the events from their group then, and does not bring
        them back with the CPU; the next update opens them again.
        """
        known = [count.enabled_ns for count in counts if count is not None]
        if len(known) < len(counts):
            return True
        enabled = min(known, default=None)
        before, self._enabled_ns[key] = self._enabled_ns.get(key), enabled
        return before is not None and before == enabled

    def _close(self, key: _K) -> None:
        for group in self._open.pop(key)[2]:
            group.close()
        self._enabled_ns.pop(key, None)

    def close(self) -> None:
        """Close everything."""
        for key in list(self._open):
            self._close(key)


def _places(
    events: Sequence[Event], missing: Iterable[tuple[Event, object]]
) -> tuple[int | None, ...]:
    """Return each event's position among those that were opened, None: it was not."""
    absent = {event for event, _ in missing}
    positions = iter(range(len(events)))
    return tuple(None if event in absent else next(positions) for event in events)


def uncore_targets(events: Iterable[Event]) -> dict[tuple[str, int], Wanted]:
    """Return the targets of uncore events: (pmu, cpu) → (target, events).

    Each box is read once per package, on the CPU that its ``cpumask`` names.
    """
    wanted: dict[tuple[str, int], Wanted] = {}
    for event in events:
        for cpu in event.cpus or ():
            target, chosen = wanted.get((event.pmu, cpu), (perf_event.on_cpu(cpu), ()))
            wanted[event.pmu, cpu] = target, (*chosen, event)
    return wanted
