# SPDX-License-Identifier: Apache-2.0
"""Counters on each CPU, and on the vCPU threads of each guest.

A guest takes a descriptor for each vCPU and event. Its emulator and vhost threads are not counted.

Counters on CPUs take precedence over counters on threads: the kernel schedules the former first,
and only lets events of the same kind take turns (ctx_sched_in, kernel/events/core.c). If the
hardware has too few counters for both, threads are never counted; see
:meth:`GuestCounters.cpu_roles_that_fit`.

Stalled cycles and hits in remote caches are counted in groups of their own, which take turns
with the first group if the hardware has too few counters for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import counter_roles, rates
from nova_numa_pmc.core.build_sample import CpuRates, attribute_accesses_of_nodes
from nova_numa_pmc.core.sample_records import ATTRIBUTED, COUNTED, Evidence
from nova_numa_pmc.exceptions import NumaPmcError, SourceUnavailable
from nova_numa_pmc.host.perf import counters, event_table, events, perf_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.core.sample_records import RunningGuest
    from nova_numa_pmc.host.perf.counters import Wanted
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.host.sources.ladder import SourceTick
    from nova_numa_pmc.model import Topology

    #: A thread's id and start time.
    _Key = tuple[int, int]


#: Roles of core events in the order in which these are opened. They are in one group as far as the
#: hardware allows, because counts that are divided by each other have to cover the same time.
ROLES = (
    counter_roles.LOCAL_DRAM,
    counter_roles.REMOTE_DRAM,
    counter_roles.INSTRUCTIONS,
    counter_roles.CYCLES,
)


def core_events(selection: EventSelection) -> tuple[Event, ...]:
    """Return the events to count on cores.

    :raises SourceUnavailable: there are no such events; the message has the reason
    """
    selected = _events_on_cores(selection, ROLES)
    if not selected:
        reasons = dict.fromkeys(why for role, why in selection.missing if role in ROLES)
        raise SourceUnavailable('no core events: %s' % '; '.join(reasons or ('none known',)))
    return selected


def _events_on_cores(selection: EventSelection, roles: Iterable[str]) -> tuple[Event, ...]:
    """Return the events of some roles, in the order of these."""
    return tuple(
        event
        for role in roles
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


class CpuCounters:
    """Counters of all that runs on each node's CPUs; not a source itself.

    :param select: function that returns the events that can be counted on this host
    :ivar roles: roles that may be counted
    """

    name = 'CPUs'

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        self._select = select
        self._root = root
        self._events: tuple[Event, ...] | None = None
        self.roles: tuple[str, ...] = ROLES
        # The owners are nodes, and the keys are their CPUs.
        self._owners: counters.OwnerCounters[int, int] = counters.OwnerCounters()
        self.problems: tuple[str, ...] = ()

    def count_only(self, roles: tuple[str, ...]) -> None:
        """Count only these roles from now on."""
        if roles != self.roles:
            self.close()
            self.roles = roles

    def sample(self, host: Topology, elapsed_ns: int) -> dict[int, CpuRates]:
        """Return {node id: rates} of the nodes whose counts are known.

        :raises SourceUnavailable: nothing can be counted on any CPU
        """
        refuse_mediated_vpmu(self._root)
        events = self._events
        if events is None:
            events = self._events = tuple(
                event for event in core_events(self._select()) if event.role in self.roles
            )
        deltas, problems = self._owners.sample(
            {
                node.id: {cpu: (perf_event.on_cpu(cpu), events) for cpu in node.online_cpus}
                for node in host.nodes
            },
            idle_is_zero=False,
        )
        self.problems = problems
        return {
            node: owner_rates(events, node_deltas, elapsed_ns)
            for node, node_deltas in deltas.items()
        }

    @property
    def with_prefetch(self) -> bool:
        """Return whether the counted accesses include prefetches."""
        return include_prefetches(self._events)

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._events = None


class CpuAttribution:
    """The source ``cpus``.

    A guest's share of a node's accesses is taken to be its share of the node's busy time.
    """

    name = 'cpus'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, as if all that ran on a node accessed memory at the same rate.

        :raises SourceUnavailable: the CPUs are not counted
        """
        if tick.before_ns is None:
            return {}
        counted = [
            node_rates
            for node_rates in tick.cpu_rates.values()
            if node_rates.local_per_sec is not None and node_rates.remote_per_sec is not None
        ]
        if not counted:
            raise SourceUnavailable('the CPUs are not counted')
        counted_ratio = min(
            (
                node_rates.counted_ratio
                for node_rates in counted
                if node_rates.counted_ratio is not None
            ),
            default=None,
        )
        evidence = {}
        for running in tick.guests:
            attributed = attribute_accesses_of_nodes(
                running.cores_by_node, tick.cpu_rates, tick.busy_cores
            )
            if attributed is None:
                continue
            local, remote = attributed
            evidence[running.guest.uuid] = Evidence(
                self.name,
                ATTRIBUTED,
                local,
                remote,
                rates.remote_ratio(local, remote),
                counted_ratio=counted_ratio,
            )
        return evidence

    def close(self) -> None:
        """Do nothing, since the counters belong to the sampler."""


#: A guest that ran for more than this without being counted did not get counters [cores].
_UNCOUNTED_MIN_CORES = 0.01
#: Roles to count on CPUs in addition to the guests; the first set that fits is used.
_ROLE_SETS = (ROLES, ROLES[:2], ())
#: The next set is used after a guest did not get counters in this many successive ticks, because
#: others may use counters for a moment.
_SHORT_TICKS = 3
#: Ticks after which more roles are tried again: an hour at the default interval.
_RETRY_TICKS = 720


class GuestCounters:
    """The source ``guests``.

    :param select: function that returns the events that can be counted on this host
    """

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        self.name = 'guests by thread'
        self._select = select
        self._root = root
        self._events: tuple[Event, ...] | None = None
        self._missing: tuple[str, ...] = ()
        self._owners: counters.OwnerCounters[str, _Key] = counters.OwnerCounters()
        self._wanted: dict[str, dict[_Key, Wanted]] = {}  # in the form that OwnerCounters takes
        self._last_ns: int | None = None
        self._closed = False  # whether it was closed and has not been sampled since
        self._role_set = 0  # index into _ROLE_SETS of the first set that fits
        self._lowered = 0  # number of sets to skip after that one, because counters were short
        self._short_ticks = 0  # successive ticks in which counters were short
        self._retry_ticks = 0  # ticks until the first set that fits is tried again
        self._unfit: tuple[str, ...] = ()  # roles that do not fit beside the chosen set
        self.problems: tuple[str, ...] = ()

    def cpu_roles_that_fit(self, cpu: int) -> tuple[str, ...]:
        """Return the most roles that can be counted on CPUs alongside this source.

        :param cpu: an online CPU to try this on
        """
        if self._closed:
            return _ROLE_SETS[0]
        if self._events is None:
            try:
                events = self._choose()
                first = _events_with_roles(events, ROLES)
                self._role_set = next(
                    index
                    for index, roles in enumerate(_ROLE_SETS)
                    if not roles
                    or perf_event.fit_together(first + _events_with_roles(first, roles), cpu)
                )
                # If a group does not fit in its turn, the kernel does not try the next one.
                cpu_events = _events_with_roles(first, _ROLE_SETS[self._role_set])
                self._unfit = tuple(
                    role
                    for role in dict.fromkeys(event.role for event in events)
                    if role not in ROLES
                    and not perf_event.fit_together(
                        cpu_events + _events_with_roles(events, (role,)), cpu
                    )
                )
                self._events = tuple(event for event in events if event.role not in self._unfit)
            except NumaPmcError:
                return _ROLE_SETS[0]  # sample() reports why
        return _ROLE_SETS[min(self._role_set + self._lowered, len(_ROLE_SETS) - 1)]

    def _choose(self) -> tuple[Event, ...]:
        selection = self._select()
        events = self._events = core_events(selection) + tuple(
            event
            for event in _events_on_cores(selection, counter_roles.GUEST_ROLES)
            if event.role not in self._unfit
        )
        reason = why_no_memory_events(selection)
        self._missing = ('%s: %s' % (self.name, reason),) if reason else ()
        return events

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which is of execution only if there are no DRAM events.

        :raises SourceUnavailable: nothing can be counted on any guest
        """
        refuse_mediated_vpmu(self._root)
        events = self._choose() if self._events is None else self._events
        self._closed = False
        self._wanted = {
            running.guest.uuid: self._threads(running, events) for running in tick.guests
        }
        deltas, problems = self._owners.sample(self._wanted, idle_is_zero=True)
        if self._last_ns != tick.before_ns:
            deltas = {}  # not sampled in the last tick, so the counts cover a longer time
        self._last_ns = tick.monotonic_ns
        self.problems = self._missing + problems
        self._share_counters(tick.guests, deltas)
        evidence = {}
        for uuid, guest_deltas in deltas.items():
            guest_rates = owner_rates(events, guest_deltas, tick.elapsed_ns)
            if guest_rates.counted_ratio is not None:
                evidence[uuid] = self._evidence(guest_rates)
        return evidence

    def _share_counters(
        self, guests: Iterable[RunningGuest], deltas: Mapping[str, counters.Deltas]
    ) -> None:
        """Count fewer roles on CPUs if guests lack counters, and try more again later.

        Fewer counters may be free than the hardware has: the NMI watchdog takes one.
        """
        is_short = any(
            running.cores
            and running.cores > _UNCOUNTED_MIN_CORES
            and _is_unknown(deltas.get(running.guest.uuid))
            for running in guests
        )
        self._short_ticks = self._short_ticks + 1 if is_short else 0
        if self._short_ticks == _SHORT_TICKS:
            self._lowered += 1
            self._short_ticks, self._retry_ticks = 0, _RETRY_TICKS
        elif self._retry_ticks:
            self._retry_ticks -= 1
            if not self._retry_ticks:
                self._lowered = 0

    def _evidence(self, guest_rates: CpuRates) -> Evidence:
        local, remote = guest_rates.local_per_sec, guest_rates.remote_per_sec
        if local is None or remote is None:
            local = remote = None
        return Evidence(
            self.name,
            COUNTED,
            local,
            remote,
            rates.remote_ratio(local, remote),
            None,
            guest_rates.cycles_per_sec,
            guest_rates.instructions_per_sec,
            guest_rates.counted_ratio,
            guest_rates.remote_cache_per_sec,
            guest_rates.stalled_cycles_per_sec,
        )

    def _threads(self, running: RunningGuest, events: tuple[Event, ...]) -> dict[_Key, Wanted]:
        before = self._wanted.get(running.guest.uuid, {})
        keys = [(tid, times.start_ticks) for tid, times in running.threads.items()]
        return {
            key: before.get(key)
            or (perf_event.Target(perf_event.THREAD, key[0], start_ticks=key[1]), events)
            for key in keys
        }

    @property
    def with_prefetch(self) -> bool:
        """Return whether the counted accesses include prefetches."""
        return include_prefetches(self._events)

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._events = None
        self._wanted = {}
        self._closed = True


def _is_unknown(deltas: counters.Deltas | None) -> bool:
    """Return whether nothing is known about a guest although it is counted."""
    if deltas is None:
        return False
    return {delta for role, delta in deltas.items() if role in ROLES} == {None}


def _events_with_roles(events: tuple[Event, ...], roles: tuple[str, ...]) -> tuple[Event, ...]:
    return tuple(event for event in events if event.role in roles)
