# SPDX-License-Identifier: Apache-2.0
"""Counters on the vCPU threads of each guest.

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

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.evidence import Evidence
from nova_numa_pmc.core.sample_records import COUNTED
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host.perf import perf_event
from nova_numa_pmc.host.sources import owner_counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.core.evidence import RunningGuest
    from nova_numa_pmc.host.perf.counters import Wanted
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.host.sources import SourceTick

    #: A thread's id and start time.
    _Key = tuple[int, int]

#: A guest that ran for more than this without being counted did not get counters [cores].
_UNCOUNTED_MIN_CORES = 0.01
#: Roles to count on CPUs in addition to the guests; the first set that fits is used.
_ROLE_SETS = (owner_counters.ROLES, owner_counters.ROLES[:2], ())
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
        self._owners: owner_counters.OwnerCounters[str, _Key] = owner_counters.OwnerCounters()
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
                first = _events_with_roles(events, owner_counters.ROLES)
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
                    if role not in owner_counters.ROLES
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
        events = self._events = owner_counters.core_events(selection) + tuple(
            event
            for event in owner_counters.guest_events(selection)
            if event.role not in self._unfit
        )
        reason = owner_counters.why_no_memory_events(selection)
        self._missing = ('%s: %s' % (self.name, reason),) if reason else ()
        return events

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which is of execution only if there are no DRAM events.

        :raises SourceUnavailable: nothing can be counted on any guest
        """
        owner_counters.refuse_mediated_vpmu(self._root)
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
            guest_rates = owner_counters.owner_rates(events, guest_deltas, tick.elapsed_ns)
            if guest_rates.counted_ratio is not None:
                evidence[uuid] = self._evidence(guest_rates)
        return evidence

    def _share_counters(
        self, guests: Iterable[RunningGuest], deltas: Mapping[str, owner_counters.Deltas]
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
        return owner_counters.include_prefetches(self._events)

    def close(self) -> None:
        """Close the counters; the events are chosen again at the next sample."""
        self._owners.close()
        self._events = None
        self._wanted = {}
        self._closed = True


def _is_unknown(deltas: owner_counters.Deltas | None) -> bool:
    """Return whether nothing is known about a guest although it is counted."""
    if deltas is None:
        return False
    return {delta for role, delta in deltas.items() if role in owner_counters.ROLES} == {None}


def _events_with_roles(events: tuple[Event, ...], roles: tuple[str, ...]) -> tuple[Event, ...]:
    return tuple(event for event in events if event.role in roles)
