# SPDX-License-Identifier: Apache-2.0
"""Count events by owner (a guest or a node), summed over its targets (threads or CPUs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nova_numa_pmc.core import counter_roles, rates
from nova_numa_pmc.core.build_sample import CpuRates
from nova_numa_pmc.exceptions import CounterError, CounterUnsupported, SourceUnavailable
from nova_numa_pmc.host.perf import counters, event_table, events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.host.perf.perf_event import GroupReadings

    #: What the events of each role counted; None: unknown.
    Deltas = dict[str, rates.CounterDelta | None]

#: The owner of targets, and the key that distinguishes its targets.
_O = TypeVar('_O')
_K = TypeVar('_K')

#: Roles of core events in the order in which these are opened. They are in one group as far as the
#: hardware allows, because counts that are divided by each other have to cover the same time.
ROLES = (
    counter_roles.LOCAL_DRAM,
    counter_roles.REMOTE_DRAM,
    counter_roles.INSTRUCTIONS,
    counter_roles.CYCLES,
)

#: A guest is known without the threads that got no counter if they ran for at most this share of
#: its time: a thread that hardly runs is often not given a turn, and hardly counts.
STARVED_MAX_RATIO = 0.1


def core_events(selection: EventSelection) -> tuple[Event, ...]:
    """Return the events to count on cores.

    :raises SourceUnavailable: there are no such events; the message has the reason
    """
    selected = tuple(
        event
        for role in ROLES
        for event in selection.events
        if event.role == role and event.cpus is None
    )
    if not selected:
        reasons = dict.fromkeys(why for role, why in selection.missing if role in ROLES)
        raise SourceUnavailable('no core events: %s' % '; '.join(reasons or ('none known',)))
    return selected


def guest_events(selection: EventSelection) -> tuple[Event, ...]:
    """Return the events to count on guests in addition to :func:`core_events`."""
    return tuple(
        event
        for role in counter_roles.GUEST_ROLES
        for event in selection.events
        if event.role == role and event.cpus is None
    )


def why_no_memory_events(selection: EventSelection) -> str | None:
    """Return why local and remote accesses cannot be told apart; None if they can."""
    missing = dict(selection.missing)
    for role in (counter_roles.LOCAL_DRAM, counter_roles.REMOTE_DRAM):
        if role in missing:
            return 'no event for %s: %s' % (role, missing[role])
    return None


def include_prefetches(counted_events: Iterable[Event] | None) -> bool:
    """Return whether the accesses that events count include prefetches; None: no events."""
    return any(event_table.ANY_FILLS in event.caveats for event in counted_events or ())


def refuse_mediated_vpmu(root: str) -> None:
    """Raise an exception if KVM's mediated vPMU is enabled.

    This has to be checked at every tick, because KVM's module may be reloaded with it enabled, and
    an open event of ours would then stop the next guest from starting.

    :raises SourceUnavailable: the mediated vPMU is enabled
    """
    if events.has_mediated_vpmu(root):
        raise SourceUnavailable(events.WHY_MEDIATED % 'cores')


class OwnerCounters(Generic[_O, _K]):
    """Counters of owners, which return the difference between two readings.

    If targets of an owner have come or gone, part of its counts is lost, so the owner is unknown
    for that tick.
    """

    def __init__(self) -> None:
        self._counters: counters.Counters[tuple[_O, _K]] = counters.Counters()
        self._before: dict[_O, dict[_K, GroupReadings]] = {}
        self._unsupported: dict[str, None] = {}
        #: Time between the last two readings of each owner in ``sample`` [ns], by the kernel's
        #: clock; only for owners that are never idle.
        self.counted_ns: dict[_O, int] = {}

    def sample(
        self, wanted: Mapping[_O, Mapping[_K, counters.Wanted]], idle_is_zero: bool
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
        # Counters reports unsupported events once, but refusals and exhaustion at each attempt.
        self._unsupported.update(
            (str(error), None) for error in errors if isinstance(error, CounterUnsupported)
        )
        problems = tuple(dict.fromkeys([*self._unsupported, *map(str, errors)]))
        if wanted_by_key and problems and not len(self._counters):
            if all(isinstance(error, CounterUnsupported) for error in errors):
                raise SourceUnavailable(problems[0])
            raise CounterError(problems[0])
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
        self._counters = counters.Counters()
        self._before = {}
        self._unsupported = {}


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
    targets: Mapping[_K, counters.Wanted],
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
    targets: Mapping[_K, counters.Wanted],
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


def owner_rates(
    counted_events: Iterable[Event],
    deltas: Mapping[str, rates.CounterDelta | None],
    elapsed_ns: int,
) -> CpuRates:
    """Return an owner's rates; a role is unknown if one of its events is on any target.

    :param counted_events: the events that ``deltas`` are of
    :param deltas: deltas of one owner, from :meth:`OwnerCounters.sample`
    """
    totals = {role: deltas.get(role) for role in ROLES + counter_roles.GUEST_ROLES}
    for event in counted_events:
        if event.minus is not None:
            totals[event.role] = rates.subtract(totals[event.role], totals.get(event.minus))
    shares = [delta.share for delta in map(totals.get, ROLES) if delta is not None]
    local, remote, instructions, cycles, remote_cache, stalled = (
        rates.per_sec(delta, elapsed_ns) for delta in totals.values()
    )
    counted_ratio = min(shares, default=None)
    return CpuRates(local, remote, cycles, instructions, counted_ratio, remote_cache, stalled)
