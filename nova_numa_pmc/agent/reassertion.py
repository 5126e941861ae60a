# SPDX-License-Identifier: Apache-2.0
"""Hold guests to their places: read their cpusets back, and rewrite those that were reset.

A restart of libvirt, or systemd's daemon-reload, resets groups; CPUs come online; vCPUs are
plugged in; an agent or a hook that was killed leaves a promise whose cpuset was not written. The
promise is authoritative, because it is recorded before anything is written.

Sets of the operator take precedence and stay: a pin in libvirt's live XML, and a changed set of a
single group that had our set before. A wider set does not count as the operator's, because libvirt
and systemd leave wide sets behind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.core.placement import l3
from nova_numa_pmc.cpulist import format_cpulist, name_nodes
from nova_numa_pmc.exceptions import GuestGone, NumaPmcError
from nova_numa_pmc.host import cgroups, guests, holding
from nova_numa_pmc.host.cpusets import (
    Cpuset,
    common_cpus,
    cpusets_of_written_groups,
    groups_set_by_others,
    is_held,
    read_cpusets,
)
from nova_numa_pmc.host.page_moves import node_room
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging
    from collections.abc import Container, Iterable, Set

    from nova_numa_pmc.agent.tick import Moment, Tick
    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.host.writes import FileChange
    from nova_numa_pmc.problem_log import ProblemLog

#: Once a guest's sets have been written again this many times within this time [s], they are left
#: to the program or the operator that resets them.
_RESETS_MAX, _RESETS_WINDOW_S = 6, 600.0
_STAGE = 'holding guest %s'


class Reassertion:
    """Reads back the guests' cpusets, tick by tick, and rewrites those that differ."""

    def __init__(
        self, host_options: HostOptions, root: str, log: logging.Logger, problem_log: ProblemLog
    ) -> None:
        self.host_options = host_options
        self._root = root
        self._log = log
        self._problem_log = problem_log
        self._running_names: dict[model.RunId, str] = {}
        self._groups: dict[model.RunId, cgroups.GuestGroups] = {}
        self._rewrite_times_s: dict[str, list[float]] = {}  # uuid → times of recent writes
        #: The CPUs that all groups except the operator's were last seen to have.
        self._held: dict[model.RunId, frozenset[int]] = {}
        #: Names of the groups that are left to the operator, as logged.
        self._set_by_others: dict[model.RunId, frozenset[str]] = {}

    def hold(
        self,
        tick: Tick,
        covered_nodes: Set[int] | None = None,
        moving: Container[str] = (),
        names: Container[str] | None = None,
    ) -> None:
        """Rewrite cpusets that differ from the promise; a failure with one guest is only logged.

        Bound guests that are not held, as during a libvirt job, are unbound if need be.

        :param tick: a tick with the host and its promises
        :param covered_nodes: ids of the nodes whose memory covers its promises; None: all
        :param moving: uuids of the guests that a command is moving: they are not held, and only
            unbound if their nodes become too small
        :param names: names of the guests whose groups are read; None: all
        """
        assert tick.host is not None and tick.host_promises is not None
        room = node_room.BoundRoom(self.host_options.placement_options.reserve_bytes, self._root)
        self._forget(tick.guests)
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            if names is not None and guest.name not in names:
                continue
            is_ours = promise is not None and _is_ours(guest, promise)
            if promise is None or not (is_ours or promise.bound):
                self._problem_log.forget(_STAGE % guest.name)
                continue
            cpus = pools.cpus_of_promise(promise, tick.host, guest)
            is_moving = guest.uuid in moving
            may_hold, succeeded = is_ours and bool(cpus) and not is_moving, False
            with self._problem_log.stage(_STAGE % guest.name):
                try:
                    try:
                        succeeded = may_hold and self._hold(
                            guest, promise, cpus, tick.now, tick.host
                        )
                    finally:  # its node is watched even if it could not be held
                        self._check_bound_memory(
                            guest, promise, covered_nodes, room, not succeeded
                        )
                except GuestGone:
                    self._groups.pop(guest.run_id, None)  # its groups may have been made elsewhere

    def forget_failures(self) -> None:
        """Clear the failures of all guests; holding is turned off."""
        self._problem_log.forget(*(_STAGE % name for name in self._running_names.values()))

    def _forget(self, running: Iterable[model.Guest]) -> None:
        """Drop everything that is kept about guests that are gone."""
        running_names = {guest.run_id: guest.name for guest in running}
        for run_id in self._running_names.keys() - running_names.keys():
            self._problem_log.forget(_STAGE % self._running_names[run_id])
            for by_run_id in (self._groups, self._held, self._set_by_others):
                by_run_id.pop(run_id, None)
            uuid, _ = run_id
            self._rewrite_times_s.pop(uuid, None)
        self._running_names = running_names

    def _hold(
        self,
        guest: model.Guest,
        promise: model.Promise,
        cpus: frozenset[int],
        now: Moment,
        host: model.Topology,
    ) -> bool:
        """Hold the guest to its place; return False if another program keeps resetting it."""
        run_id = guest.run_id
        groups = self._find(guest)
        pinned = guest.pinned_groups
        # A set within the place is a pin, or the place as it was before CPUs came online.
        place_changed = self._held.get(run_id) != cpus
        if is_held(groups, cpus, host.online_cpus, pinned, needs_all_cpus=place_changed):
            self._held[run_id] = cpus
            self._log_set_by_others(run_id, guest, pinned)
            return True
        cpusets = read_cpusets(groups)
        written_sets = self._written_sets(run_id, guest, groups, cpusets, cpus, host)
        set_by_others = pinned | frozenset.intersection(
            *(frozenset(groups_set_by_others(groups, cpusets, cpus, old)) for old in written_sets)
        )
        self._log_set_by_others(run_id, guest, set_by_others)
        monotonic_s = now.monotonic_ns / 1e9
        recent_times_s = [
            written_s
            for written_s in self._rewrite_times_s.get(guest.uuid, ())
            if monotonic_s - written_s < _RESETS_WINDOW_S
        ]
        if len(recent_times_s) >= _RESETS_MAX:
            self._problem_log.log_problems(
                [
                    'guest %s: its cpuset was reset %d times in %.0f minutes and is now left as '
                    'it is: find the process that writes it, or run nova-numa-rebalance pin '
                    '--ignore' % (guest.name, len(recent_times_s), _RESETS_WINDOW_S / 60)
                ]
            )
            return False
        changes = _hold_groups(groups, cpusets, cpus, written_sets, set_by_others)
        if changes:
            if self._held.get(run_id) == cpus:  # the set was in force before, so others changed it
                self._rewrite_times_s[guest.uuid] = [*recent_times_s, monotonic_s]
            self._log_held(guest, promise.held_nodes, cpus, changes)
        self._held[run_id] = cpus
        return True

    def _written_sets(
        self,
        run_id: model.RunId,
        guest: model.Guest,
        groups: cgroups.GuestGroups,
        cpusets: dict[str, Cpuset],
        cpus: frozenset[int],
        host: model.Topology,
    ) -> tuple[frozenset[int], ...]:
        """Return the sets that we may have left in groups; one empty set if there are none.

        If we have seen the guest held, its last set is known. Otherwise, sets of whole nodes count
        as ours: they are those of an earlier place, left by a mover that was killed.
        """
        last_cpus = self._held.get(run_id)
        if last_cpus is not None:
            return (last_cpus if last_cpus != cpus else frozenset(),)
        common = common_cpus(groups)
        sets = [] if common is None else [common]
        for name in groups_set_by_others(groups, cpusets, cpus):
            own_cpus = cpusets[os.path.join(groups.parent, name)].cpus
            if own_cpus not in sets and _may_be_ours(own_cpus, host, guest):
                sets.append(own_cpus)
        parent_cpus = cpusets[groups.parent].cpus
        if (
            groups.version == 2
            and parent_cpus
            and parent_cpus not in sets
            and _may_be_ours(parent_cpus, host, guest)
        ):
            sets.append(parent_cpus)
        return tuple(sets) or (frozenset(),)

    def _log_held(
        self,
        guest: model.Guest,
        nodes: tuple[int, ...],
        cpus: frozenset[int],
        changes: Iterable[FileChange],
    ) -> None:
        previous = [change.before for change in changes if change.before != format_cpulist(cpus)]
        self._log.info(
            'guest %s: held to %s again: CPUs %s%s',
            guest.name,
            name_nodes(nodes),
            previous[0] + ' to ' if previous else '',
            format_cpulist(cpus),
        )

    def _log_set_by_others(
        self, run_id: model.RunId, guest: model.Guest, set_by_others: frozenset[str]
    ) -> None:
        """Log once which groups are left to the operator."""
        if set_by_others == self._set_by_others.get(run_id, frozenset()):
            return
        self._set_by_others[run_id] = set_by_others
        self._log.info(
            'guest %s: %s',
            guest.name,
            'pinned by others and left alone: %s' % ', '.join(sorted(set_by_others))
            if set_by_others
            else 'its threads are no longer pinned by others',
        )

    def _find(self, guest: model.Guest) -> cgroups.GuestGroups:
        groups = self._groups.get(guest.run_id)
        # vCPUs that were plugged in since have groups of their own.
        if groups is None or cgroups.find_thread_cgroups(groups.parent) != groups.thread_cgroups:
            groups = self._groups[guest.run_id] = cgroups.of_guest(guest, self._root)
        return groups

    def _check_bound_memory(
        self,
        guest: model.Guest,
        promise: model.Promise,
        covered_nodes: Set[int] | None,
        room: node_room.BoundRoom,
        only_unbind: bool,
    ) -> None:
        """Keep a bound guest bound while its promised memory fits its nodes, else unbind it."""
        if not promise.bound or not promise.mem_nodes or 'numatune' in guest.placed_by:
            return
        groups, mems = self._find(guest), frozenset(promise.mem_nodes)
        if not self.host_options.bind:
            why = 'the option bind is off'
        elif guest.page_bytes:
            why = 'its huge pages stay where they are'
        elif covered_nodes is not None and not mems <= covered_nodes:
            why = 'more memory is promised there than fits'
        else:
            why = room.take(promise, cgroups.read_memory_by_node(groups) or {})
        if not why and only_unbind:
            return
        if not why:
            bound = [cpuset.mems == mems for cpuset in cpusets_of_written_groups(groups)]
            if all(bound):
                return
            # If only a new vCPU is not bound, no memory is elsewhere.
            why, changes = holding.bind_memory(
                groups, mems, 1 << 62 if any(bound) else holding.FETCH_MAX_BYTES
            )
            if changes:
                self._log.info('guest %s: bound to the memory of %s', guest.name, name_nodes(mems))
            if not why:
                return
        changes = holding.unbind_memory(groups, mems)
        promises_file.update_running(promise, self.host_options, self._root, bound=False)
        self._log.info(
            'guest %s: %s bound to the memory of %s: %s',
            guest.name,
            'no longer' if changes else 'not',
            name_nodes(mems),
            why,
        )


def _is_ours(guest: model.Guest, promise: model.Promise) -> bool:
    """Return whether a guest, whose start is finished, is to be held to its place."""
    return (
        promise.started
        and promise.origin == model.PLACED
        and bool(promise.cpu_nodes)
        and not eligibility.why_not(eligibility.HOLD, guest)
    )


def _hold_groups(
    groups: cgroups.GuestGroups,
    cpusets: dict[str, Cpuset],
    cpus: frozenset[int],
    written_sets: Iterable[frozenset[int]],
    set_by_others: frozenset[str],
) -> list[FileChange]:
    """Replace each set that we have left in groups, but not in groups that others have set."""
    changes: list[FileChange] = []
    for written_cpus in written_sets:
        others = frozenset(groups_set_by_others(groups, cpusets, cpus, written_cpus))
        changes += holding.hold(
            groups, cpus, written_cpus=written_cpus, set_by_others=set_by_others | others
        ).changes
    return changes


def _may_be_ours(cpus: frozenset[int], host: model.Topology, guest: model.Guest) -> bool:
    """Return whether a set is one that we write.

    We write all CPUs of some nodes that a guest may use, or all usable CPUs of these nodes (before
    the floating pool was known), or the CPUs of an L3 cache.
    """
    wide_host = pools.with_usable_cpus(host)
    nodes = tuple(node.id for node in wide_host.nodes if node.cpus & cpus)
    guest_cpus = pools.cpus_on(nodes, host, guest)
    return cpus in (guest_cpus, pools.cpus_on(nodes, wide_host, guest)) or (
        any(cpus == guest_cpus & cache for caches in host.l3s for cache in caches)
        and not l3.is_single_core(cpus, host)
    )


def unbind_all(host_options: HostOptions, root: str, log: logging.Logger, why: str) -> None:
    """Unbind the memory of all bound guests, because their nodes are no longer watched.

    Their promises stay bound, so that the agent binds them again when it watches their nodes.

    :param why: why their nodes are not watched, for the log
    """
    host_promises = promises_file.read(host_options, root)
    bound = {promise.uuid: promise for promise in host_promises.promises.values() if promise.bound}
    for guest in guests.read_running(root)[0] if bound else ():
        promise = bound.get(guest.uuid)
        if promise is None:
            continue
        try:
            changes = holding.unbind_memory(
                cgroups.of_guest(guest, root), frozenset(promise.mem_nodes)
            )
        except GuestGone:
            continue
        except NumaPmcError as error:
            log.warning('guest %s: stays bound: %s', guest.name, error)
            continue
        if changes:
            log.info('guest %s: no longer bound: %s', guest.name, why)
