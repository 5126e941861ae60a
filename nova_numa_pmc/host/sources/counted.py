# SPDX-License-Identifier: Apache-2.0
"""Counters on each CPU, and on the vCPU threads of each guest.

A guest takes a descriptor for each vCPU and event. Its emulator and vhost threads are not counted.

Counters on CPUs take precedence over counters on threads: the kernel schedules the former first,
and only lets events of the same kind take turns (ctx_sched_in, kernel/events/core.c). If the
hardware has too few counters for both, threads are never counted. Beside guests, CPUs are
therefore counted by two events only, and not at all for an hour after guests got no counter
(:attr:`GuestCounters.crowded_out`).

Stalled cycles are counted in a group of their own, which takes turns with the first group if the
hardware has too few counters for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.measurements import COUNTED, Evidence
from nova_numa_pmc.exceptions import SourceUnavailable
from nova_numa_pmc.host.perf import counters, event_table, events, perf_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nova_numa_pmc.core.measurements import RunningGuest
    from nova_numa_pmc.host.perf.counters import Wanted
    from nova_numa_pmc.host.perf.events import Event, EventSelection
    from nova_numa_pmc.host.sources.ladder import SourceTick
    from nova_numa_pmc.model import Topology

    #: A thread's id and start time.
    _Key = tuple[int, int]

_O = TypeVar('_O')
_K = TypeVar('_K')

#: Roles that show where memory is accessed.
DRAM_ROLES = (rates.LOCAL_DRAM, rates.REMOTE_DRAM)
#: Roles of core events in the order in which these are opened. They are in one group as far as the
#: hardware allows, because counts that are divided by each other have to cover the same time.
ROLES = (*DRAM_ROLES, rates.INSTRUCTIONS, rates.CYCLES)


def owner_rates(
    counted_events: Iterable[Event],
    deltas: Mapping[str, rates.CounterDelta | None],
    elapsed_ns: int,
    source: str = '',
    basis: str = '',
) -> Evidence:
    """Return an owner's rates; a role is unknown if one of its events is on any target.

    Local and remote accesses are unknown if either is, since one shows nothing without the other.

    :param counted_events: the events that ``deltas`` are of
    :param deltas: deltas of one owner, from :meth:`OwnerCounters.sample`
    """
    totals = dict(deltas)
    for event in counted_events:
        if event.minus is not None:
            totals[event.role] = rates.subtract(totals.get(event.role), totals.get(event.minus))
    shares = [delta.share for delta in map(totals.get, ROLES) if delta is not None]
    local, remote, instructions, cycles, stalled = (
        rates.per_sec(totals.get(role), elapsed_ns) for role in (*ROLES, rates.GUEST_ROLE)
    )
    if local is None or remote is None:
        local = remote = None
    # Positional, because keyword arguments take longer, and there are hundreds of guests.
    return Evidence(
        source,
        basis,
        local,
        remote,
        None,
        None,
        cycles,
        instructions,
        min(shares, default=None),
        stalled,
    )


class _CoreCounters(Generic[_O, _K]):
    """Counters of core events; the events are chosen at the first sample after a start or close.

    :param select: function that returns the events that can be counted on this host
    :param roles: what to count
    """

    name = ''

    def __init__(
        self, select: Callable[[], EventSelection], root: str, roles: tuple[str, ...]
    ) -> None:
        self._select = select
        self._root = root
        self._roles = roles
        self._events: tuple[Event, ...] | None = None
        self._why_partial: tuple[str, ...] = ()
        self._owners: counters.OwnerCounters[_O, _K] = counters.OwnerCounters()
        self.problems: tuple[str, ...] = ()

    def _chosen_events(self) -> tuple[Event, ...]:
        """Return the events to count.

        KVM's mediated vPMU is looked for at every tick, because KVM's module may be reloaded with
        it enabled, and an open event of ours would then stop the next guest from starting.

        :raises SourceUnavailable: nothing can be counted; the message has the reason
        """
        if events.has_mediated_vpmu(self._root):
            raise SourceUnavailable(events.WHY_MEDIATED % 'cores')
        if self._events is None:
            selection = self._select()
            by_role = [
                event
                for role in self._roles
                for event in selection.events
                if event.role == role and event.cpus is None
            ]
            missing = {role: why for role, why in selection.missing if role in ROLES}
            if not any(event.role in ROLES for event in by_role):
                reasons = dict.fromkeys(missing.values()) or ('none known',)
                raise SourceUnavailable('no core events: %s' % '; '.join(reasons))
            self._why_partial = tuple(
                '%s: no event for %s: %s' % (self.name, role, missing[role])
                for role in DRAM_ROLES
                if role in missing
            )[:1]
            self._events = tuple(by_role)
        return self._events

    @property
    def with_prefetch(self) -> bool:
        """Return whether the counted accesses include prefetches."""
        return any(event_table.ANY_FILLS in event.caveats for event in self._events or ())

    def close(self) -> None:
        """Close the counters."""
        self._owners.close()
        self._events = None


class CpuCounters(_CoreCounters[int, int]):
    """Counters of all that runs on each node's CPUs; not a source itself."""

    name = 'CPUs'

    def sample(self, host: Topology, elapsed_ns: int) -> dict[int, Evidence]:
        """Return {node id: rates} of the nodes whose counts are known.

        :raises SourceUnavailable: nothing can be counted on any CPU
        """
        chosen = self._chosen_events()
        deltas, self.problems = self._owners.sample(
            {
                node.id: {cpu: (perf_event.on_cpu(cpu), chosen) for cpu in node.online_cpus}
                for node in host.nodes
            },
            idle_is_zero=False,
        )
        return {
            node: owner_rates(chosen, node_deltas, elapsed_ns)
            for node, node_deltas in deltas.items()
        }


#: A guest that ran for more than this without being counted did not get counters [cores].
_UNCOUNTED_MIN_CORES = 0.01
#: CPUs give way after a guest did not get counters in this many successive ticks, because others
#: may use counters for a moment.
_SHORT_TICKS = 3
#: Ticks for which they do: an hour at the default interval.
_CROWDED_OUT_TICKS = 720


class GuestCounters(_CoreCounters[str, '_Key']):
    """The source ``guests``."""

    name = 'guests by thread'

    def __init__(self, select: Callable[[], EventSelection], root: str = '/') -> None:
        super().__init__(select, root, (*ROLES, rates.GUEST_ROLE))
        self._wanted: dict[str, dict[_Key, Wanted]] = {}  # in the form that OwnerCounters takes
        self._last_ns: int | None = None
        self._short_ticks = 0  # successive ticks in which counters were short
        self._crowded_out_ticks = 0  # ticks for which CPUs still give way

    @property
    def crowded_out(self) -> bool:
        """Return whether CPUs should not be counted, because guests got no counters beside them.

        Fewer counters may be free than the hardware has: the NMI watchdog takes one.
        """
        return self._crowded_out_ticks > 0

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which is of execution only if there are no DRAM events.

        :raises SourceUnavailable: nothing can be counted on any guest
        """
        chosen = self._chosen_events()
        self._wanted = {
            running.guest.uuid: self._threads(running, chosen) for running in tick.guests
        }
        deltas, problems = self._owners.sample(self._wanted, idle_is_zero=True)
        if self._last_ns != tick.before_ns:
            deltas = {}  # not sampled in the last tick, so the counts cover a longer time
        self._last_ns = tick.monotonic_ns
        self.problems = self._why_partial + problems
        self._note_short_counters(tick.guests, deltas)
        evidence = {}
        for uuid, guest_deltas in deltas.items():
            found = owner_rates(chosen, guest_deltas, tick.elapsed_ns, self.name, COUNTED)
            if found.counted_ratio is not None:
                evidence[uuid] = found
        return evidence

    def _note_short_counters(
        self, guests: Iterable[RunningGuest], deltas: Mapping[str, counters.Deltas]
    ) -> None:
        is_short = any(
            running.cores
            and running.cores > _UNCOUNTED_MIN_CORES
            and _is_uncounted(deltas.get(running.guest.uuid))
            for running in guests
        )
        self._short_ticks = self._short_ticks + 1 if is_short else 0
        if self._short_ticks == _SHORT_TICKS:
            self._crowded_out_ticks = _CROWDED_OUT_TICKS
        else:
            self._crowded_out_ticks = max(0, self._crowded_out_ticks - 1)

    def _threads(self, running: RunningGuest, chosen: tuple[Event, ...]) -> dict[_Key, Wanted]:
        before = self._wanted.get(running.guest.uuid, {})
        keys = [(tid, times.start_ticks) for tid, times in running.threads.items()]
        return {
            key: before.get(key)
            or (perf_event.Target(perf_event.THREAD, key[0], start_ticks=key[1]), chosen)
            for key in keys
        }

    def close(self) -> None:
        """Close the counters."""
        super().close()
        self._wanted = {}
        self._short_ticks = self._crowded_out_ticks = 0


def _is_uncounted(deltas: counters.Deltas | None) -> bool:
    """Return whether nothing is known of a guest's first group although it is counted."""
    if deltas is None:
        return False
    return {delta for role, delta in deltas.items() if role in ROLES} == {None}
