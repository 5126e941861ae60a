# SPDX-License-Identifier: Apache-2.0
"""Keep counters open on targets that come and go: CPUs and threads.

:class:`OwnerCounters` returns what they counted since the last reading by the owner of targets, a
guest or a node.
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
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.host.perf.events import Event
    from nova_numa_pmc.host.perf.perf_event import GroupReadings

    #: A target, and the events to count on it.
    Wanted = tuple[perf_event.Target, tuple[Event, ...]]
    #: What the events of each role counted; None: unknown.
    Deltas = dict[str, rates.CounterDelta | None]


#: A group that is enabled for longer has had its turn: the kernel changes turns at each tick.
_UNCOUNTED_MAX_NS = 10**9
#: The owner of targets, and the key that identifies a target of it.
_O = TypeVar('_O')
_K = TypeVar('_K')


class _Open(Record):
    """A target that is counted.

    :param groups: its open groups
    :param events: the events of the groups, in their order
    :param missing: the roles of the events that cannot be counted on it
    """

    wanted: Wanted
    groups: tuple[perf_event.EventGroup, ...]
    events: tuple[Event, ...]
    missing: tuple[str, ...]

    def read(self) -> GroupReadings:
        """Return the counts of the events so far."""
        if len(self.groups) == 1:  # as usual; the same object is returned while nothing ran
            return self.groups[0].read()
        return tuple([count for group in self.groups for count in group.read()])


class OwnerCounters(Generic[_O, _K]):
    """Counters of owners, opened and closed as their targets change.

    A counter that cannot be opened is not an error: its role is unknown. If targets of an owner
    have come or gone, part of its counts is lost, so the owner is unknown for that tick.

    :ivar counted_ns: {owner that is never idle: time between its last two readings [ns], by the
        kernel's clock}
    """

    def __init__(self) -> None:
        perf_event.raise_descriptor_limit()
        self._open: dict[tuple[_O, _K], _Open] = {}
        self._before: dict[_O, dict[_K, GroupReadings]] = {}
        #: {PMU: the most events of a group}; less than before after a group was never counted.
        self._group_max = dict(perf_event.GROUP_MAX)
        #: {(event, kind of target): why it cannot be counted there}
        self._unsupported: dict[tuple[Event, str], str] = {}
        self.counted_ns: dict[_O, int] = {}

    def sample(
        self, wanted: Mapping[_O, Mapping[_K, Wanted]], idle_is_zero: bool
    ) -> tuple[dict[_O, Deltas], tuple[str, ...]]:
        """Open and close counters as wanted, read them, and subtract the previous reading.

        :param wanted: {owner: {key: (target, events)}}; the key distinguishes holders of an id
        :param idle_is_zero: whether targets that did not run counted nothing, as threads;
            otherwise, a counter that did not run is dead, as when a CPU went offline
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
        errors = self._update(wanted_by_key)
        problems = tuple(dict.fromkeys([*self._unsupported.values(), *map(str, errors)]))
        if wanted_by_key and problems and not any(one.groups for one in self._open.values()):
            raise CounterError(str(errors[0])) if errors else SourceUnavailable(problems[0])
        before, self._before = self._before, {owner: {} for owner in wanted}
        counted: dict[_O, list[_Open]] = {owner: [] for owner in wanted}
        for (owner, key), one in list(self._open.items()):
            self._before[owner][key] = after = one.read()
            counted[owner].append(one)
            last = before.get(owner, {}).get(key, ())
            if not idle_is_zero and self._is_dead(one.groups, last, after):
                self._close((owner, key))
        deltas: dict[_O, Deltas] = {}
        for owner, counts in self._before.items():
            earlier = before.get(owner)
            if earlier and earlier.keys() == counts.keys() == wanted[owner].keys():
                deltas[owner], self.counted_ns[owner] = _deltas(
                    counted[owner], [earlier[key] for key in counts], counts.values(), idle_is_zero
                )
        return deltas, problems

    def _update(self, wanted: Mapping[tuple[_O, _K], Wanted]) -> tuple[CounterError, ...]:
        """Open and close counters so that exactly the wanted targets are counted.

        If the target of a key has changed (a thread id was reused), its counters are closed and
        opened again.

        :returns: the errors of what could not be counted, but for unsupported events
        """
        for key in [key for key, one in self._open.items() if wanted.get(key) != one.wanted]:
            self._close(key)
        for key, (target, events) in wanted.items():
            if key in self._open:
                continue
            try:
                groups, missing = perf_event.open_groups(events, target, self._group_max)
            except CounterTargetGone:
                continue  # it has ended since it was listed
            except (CountersExhausted, CounterRefused) as error:
                return (error,)  # the others would fail as well; those open keep counting
            self._open[key] = _Open(
                (target, events),
                groups,
                tuple(event for group in groups for event in group.events),
                tuple(event.role for event, _ in missing),
            )
            if target.id is not None and perf_event.thread(target.id) != target:
                self._close(key)  # the thread has ended, and its id may have been reused
            for event, why in missing:
                self._unsupported.setdefault((event, target.kind), str(why))
        return ()

    def _is_dead(
        self, groups: Iterable[perf_event.EventGroup], before: GroupReadings, after: GroupReadings
    ) -> bool:
        """Return whether a CPU's counters will not count unless they are opened again.

        When a CPU goes offline, the kernel removes the events from their group, or their time
        stands still, and it does not restore them when the CPU comes back.
        """
        return (
            None in after
            or any(old and new and old[1] == new[1] for old, new in zip(before, after))
            or (_was_never_counted(after) and self._split_uncounted(groups))
        )

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
            self._group_max[pmu] = largest // 2
        return bool(uncounted)

    def _close(self, key: tuple[_O, _K]) -> None:
        for group in self._open.pop(key).groups:
            group.close()

    def close(self) -> None:
        """Close all counters and forget their readings, and what is unsupported."""
        for key in list(self._open):
            self._close(key)
        self.__init__()  # type: ignore[misc]


def _was_never_counted(counts: GroupReadings) -> bool:
    """Return whether a group has been enabled for long, and never counted."""
    return any(
        count is not None and count.running_ns == 0 and count.enabled_ns > _UNCOUNTED_MAX_NS
        for count in counts
    )


def _deltas(
    targets: Iterable[_Open],
    before: Iterable[GroupReadings],
    after: Iterable[GroupReadings],
    idle_is_zero: bool,
) -> tuple[Deltas, int]:
    """Return what was counted of one owner between two readings of its targets.

    Threads take turns at the counters, and one that hardly runs may get none. The counts of a role
    are therefore scaled by the time for which all targets ran ÷ that for which they were counted.

    :returns: (what each role counted, the longest time for which a counter was enabled [ns])
    """
    totals: dict[str, list[float] | None] = {}  # {role: [events or bytes, enabled, running]}
    longest_ns = 0
    for target, old_counts, new_counts in zip(targets, before, after):
        for event, old, new in zip(target.events, old_counts, new_counts):
            total = totals.setdefault(event.role, [0.0, 0, 0])
            if total is None or (old is new and idle_is_zero and new is not None):
                continue  # the same object is returned if the target has not run
            grown = rates.growth(old, new)
            if grown is None or not (idle_is_zero or grown.running_ns):
                totals[event.role] = None
                continue
            value, enabled_ns, running_ns = grown
            total[0] += value * (event.bytes_per_count or 1)
            total[1] += enabled_ns
            total[2] += running_ns
            longest_ns = max(longest_ns, enabled_ns)
        totals.update(dict.fromkeys(target.missing))
    return {
        role: None if total is None else rates.scaled(*total) for role, total in totals.items()
    }, longest_ns
