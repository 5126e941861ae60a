# SPDX-License-Identifier: Apache-2.0
"""Promise the guest of a planned move its new place, if the plan's premises still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, host_view, pools
from nova_numa_pmc.core.placement import l3
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import GuestGone, PageMoveError, StateError
from nova_numa_pmc.host import allowed, cgroups, guests, holding
from nova_numa_pmc.host.cpusets import common_set
from nova_numa_pmc.host.page_moves import guest_move
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, overrides, promises_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nova_numa_pmc.conf.opts import AgentOptions
    from nova_numa_pmc.host.cpusets import FileChange
    from nova_numa_pmc.host.page_moves.move_pages import KernelCalls
    from nova_numa_pmc.state.promises_file import HostPromises

#: How long undoing a move waits for the promises file's lock [s], for each of its guests; longer
#: than other changes, because it is not tried again, but below the timeouts of the service.
_UNDO_LOCK_TIMEOUT_S = 5.0


class MoveRefused(PageMoveError):
    """The premises of a planned move no longer hold."""


class MovePostponed(MoveRefused):
    """A planned move cannot be made now, because of its guest's state or override."""


class PendingMove(Record):
    """A pending move, with guests' promises before and after it.

    :param promised: {uuid: promise before the move}
    :param targets: {uuid: promise after the move}, for a move that undoes another one; for other
        guests, the promise follows from the move
    """

    move: plan_records.Move
    promised: Mapping[str, model.Promise]
    targets: Mapping[str, model.Promise]


class StartedMove(Record):
    """A move in progress.

    :param before, after: the guest's promise before and after the move
    :param guest_move: the move of the guest's CPUs and memory
    :param began_s: when the move began, on the executor's clock
    """

    move: plan_records.Move
    before: model.Promise
    after: model.Promise
    guest_move: guest_move.GuestMove
    began_s: float


class MovePromises:
    """Records the promises of guests that are moved.

    :param mover: as in the history. For an operator's order about one guest
        (:data:`history.PIN`), earlier overrides are ignored
    """

    def __init__(
        self,
        options: AgentOptions,
        root: str,
        clock: Callable[[], float],
        mover: str,
        kernel: KernelCalls,
    ) -> None:
        self.options = options
        self._root = root
        self._clock = clock
        self._mover = mover
        self._kernel = kernel
        self._status_files = guests.StatusFiles(root)

    def why_all_stay(self) -> str:
        """Return why no guest may be moved now: libvirt migrates one; empty if they may.

        What a migration needs of the host's memory and CPUs is not to be disturbed.
        """
        return next(
            (
                'guest %s is being migrated (%s)' % (guest.name, guest.job)
                for guest in self._status_files.read()[0]
                if guest.job and guest.job.startswith('migration')
            ),
            '',
        )

    def start(self, pending_move: PendingMove, host: model.Topology) -> StartedMove:
        """Return a move to be made; nothing is promised or written yet.

        :raises GuestGone, MoveRefused, CpusetError, PageMoveError, StateError: the move cannot be
            made
        """
        move, promised, targets = pending_move
        guest = self._guest_to_move(move)
        before = promised.get(move.uuid)
        if before is None:
            raise MoveRefused('guest %s: it has no promise' % move.name)
        after = targets.get(move.uuid) or promise_after(move, before)
        if after.cpu_nodes != before.cpu_nodes:
            # As they are now, with earlier moves of the plan and guests started since.
            others = promises_file.read(self.options.host_options, self._root).promises
            others.pop(move.uuid, None)
            after = _narrow_to_l3(
                after,
                guest,
                host,
                list(others.values()),
                self.options.host_options.placement_options,
            )
        return StartedMove(
            move, before, after, self._guest_move(move, guest, host, before, after), self._clock()
        )

    def _guest_to_move(self, move: plan_records.Move) -> model.Guest:
        """Return a guest as it is now, if it may be moved.

        :raises GuestGone, MovePostponed: it has ended, or may not be moved now
        :raises StateError: the overrides cannot be read
        """
        running: Iterable[model.Guest] = self._status_files.read()[0]
        if self._mover != history.PIN:
            running, _ = overrides.with_overrides(running, self._root)
        guest = next((guest for guest in running if guest.uuid == move.uuid), None)
        if guest is None:
            raise GuestGone('guest %s: ended before it was moved' % move.name)
        reason_code = eligibility.why_not(eligibility.PROCEED, guest)
        if reason_code:
            detail = guest.job or ('' if guest.state in (None, 'running') else guest.state)
            raise MovePostponed(
                'guest %s: %s%s'
                % (
                    move.name,
                    eligibility.TEXTS[reason_code],
                    ' (%s)' % detail if detail and not guest.override else '',
                )
            )
        return guest

    def _why_not(self, move: plan_records.Move) -> str:
        """Return why a guest may not be moved on; empty if it may."""
        try:
            self._guest_to_move(move)
        except (MovePostponed, StateError) as error:
            return str(error)
        return self.why_all_stay()

    def record(self, started: StartedMove, host: model.Topology) -> None:
        """Record the promise of the guest of a move.

        :raises MoveRefused: the guest's promise has changed since the move was planned, or there
            is no room any more
        """
        with promises_file.locked(self.options.host_options, self._root) as draft:
            if draft.promises.get(started.move.uuid) != started.before:
                raise MoveRefused(
                    'guest %s: its promise has changed since the move was planned'
                    % started.move.name
                )
            draft.put(started.after)
            self._check_room(started, draft, host)

    def undo(self, started: StartedMove) -> bool:
        """Promise a guest its former place again, unless its promise has changed again.

        :returns: whether the guest is promised its former place
        :raises StateError: the promise cannot be written
        """
        host_options, uuid = self.options.host_options, started.move.uuid
        with promises_file.locked(host_options, self._root, _UNDO_LOCK_TIMEOUT_S) as draft:
            if draft.promises.get(uuid) == started.after:
                draft.put(started.before)
            return draft.promises.get(uuid) == started.before

    def _guest_move(
        self,
        move: plan_records.Move,
        guest: model.Guest,
        host: model.Topology,
        before: model.Promise,
        after: model.Promise,
    ) -> guest_move.GuestMove:
        """Return the move of a guest's CPUs and memory.

        :raises MoveRefused: the nodes have no CPU left that the guest may use, or its memory may
            not be brought there
        """
        if not pools.may_have_memory_on(move.mem_nodes, host, guest):
            raise MoveRefused(
                'guest %s: %s'
                % (
                    move.name,
                    '; '.join(allowed.limits(guest, self._root))
                    or 'its memory may not be on these nodes',
                )
            )
        groups = cgroups.of_guest(guest, self._root)
        written_cpus = common_set(groups, 'cpus')
        if written_cpus is None:  # a vCPU that was plugged in has not been held yet
            written_cpus = pools.cpus_of_promise(before, host, guest)
        cpus = frozenset[int]()
        if move.kind != plan_records.FETCH and move.to_nodes:
            cpus = pools.cpus_of_promise(after, host, guest)
            if not cpus:
                raise MoveRefused(
                    'guest %s: none of the CPUs that it may use is on these nodes any more'
                    % move.name
                )

        def write_cpus() -> tuple[FileChange, ...]:
            if move.kind == plan_records.FETCH:
                return ()
            write = self._kernel.write
            if cpus:
                return holding.hold(groups, cpus, written_cpus=written_cpus, write=write)
            return holding.release_cpus(
                groups, written_cpus, guest.allowed_cpus, guest.pinned_groups, write
            )

        rebalance_options = self.options.rebalance_options
        return guest_move.GuestMove(
            groups,
            move.mem_nodes,
            write_cpus,
            root=self._root,
            limits=guest_move.PageMoveLimits(
                bytes_per_sec=max(1, int(rebalance_options.bytes_per_sec)),
                reserve_bytes=rebalance_options.reserve_bytes,
            ),
            mem_node_bytes=after.mem_node_bytes,
            clock=self._clock,
            kernel=self._kernel,
            why_not=lambda: self._why_not(move),
        )

    def _check_room(
        self, started: StartedMove, host_promises: HostPromises, host: model.Topology
    ) -> None:
        """Raise :class:`MoveRefused` if the start of another guest has taken the room.

        It is raised under the lock, so that the promises are not written.
        """
        promised = host_promises.promises
        promised_before = {**promised, started.move.uuid: started.before}
        nodes, nodes_before = (
            host_view.view(host, each.values(), self.options.host_options.placement_options).nodes
            for each in (promised, promised_before)
        )
        for node, before in zip(nodes, nodes_before):
            # A node that is full already may take back what is promised there.
            if node.id in started.move.mem_nodes and node.promised_bytes > max(
                node.capacity_bytes, before.promised_bytes
            ):
                raise MoveRefused('node %d has no room left for %s' % (node.id, started.move.name))


def promise_after(move: plan_records.Move, before: model.Promise) -> model.Promise:
    """Return the promise that a guest has after a move."""
    if move.kind == plan_records.WIDEN:
        return before._replace(widened_nodes=tuple(move.to_nodes))
    after = before
    if move.kind != plan_records.FETCH:
        after = after._replace(
            cpu_nodes=tuple(move.to_nodes), widened_nodes=(), origin=model.PLACED, missed=False
        )
    if move.mem_nodes and tuple(move.mem_nodes) != before.mem_nodes:
        after = after._replace(mem_nodes=tuple(move.mem_nodes), mem_node_bytes=())
    return after


def _narrow_to_l3(
    after: model.Promise,
    guest: model.Guest,
    host: model.Topology,
    others: Sequence[model.Promise],
    placement_options: model.PlacementOptions,
) -> model.Promise:
    """Return a promise with the L3 cache that a moved guest gets on its new nodes, if any.

    The L3 cache is chosen by promises, as the guest's demand was considered when the move was
    planned.

    :param after: the guest's promise after the move
    :param others: the host's other promises
    """
    pool_host = pools.with_guest_pool(guest, host)
    view = host_view.view(pool_host, others, placement_options)
    request = model.Request(guest.vcpus, guest.memory_bytes, allowed_cpus=guest.limit_cpus)
    cpus, _ = l3.choose(pool_host, view, others, after.cpu_nodes, request, placement_options)
    return after._replace(l3_cpus=cpus)
