# SPDX-License-Identifier: Apache-2.0
"""Promise the guests of a planned move their new places, if the plan's premises still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import eligibility, host_view, pools
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import GuestGone, PageMoveError
from nova_numa_pmc.host import allowed, cgroups, guests
from nova_numa_pmc.host.cpusets import common_cpus
from nova_numa_pmc.host.page_moves import guest_move
from nova_numa_pmc.moves.parts import CpuMove, MovePart, narrow_to_l3, promise_after
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, overrides, promises_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.conf.agent import AgentOptions
    from nova_numa_pmc.host.page_moves.kernel_calls import KernelCalls
    from nova_numa_pmc.state.promises_file import HostPromises

#: How long one guest of a swap waits for the room that the other is to make [s] (assumed: some
#: batches at a low rate, or a walk over memory that is not present).
_ROOM_WAIT_MAX_S = 10.0
#: How long undoing a move waits for the promises file's lock [s], for each of its guests; longer
#: than other changes, because it is not tried again, but below the timeouts of the service.
_UNDO_LOCK_TIMEOUT_S = 5.0


class MoveRefused(PageMoveError):
    """The premises of a planned move no longer hold."""


class MovePostponed(MoveRefused):
    """A planned move cannot be made now, because of its guest's state or override."""


class PendingMove(Record):
    """A pending move, with its guests' promises before and after it.

    :param promised: {uuid: promise before the move}
    :param targets: {uuid: promise after the move}, for a move that undoes another one; for other
        guests, the promise follows from the move
    """

    move: plan_records.Move
    promised: Mapping[str, model.Promise]
    targets: Mapping[str, model.Promise]


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

    def parts(self, pending_move: PendingMove, host: model.Topology) -> tuple[MovePart, ...]:
        """Return the parts of a move; nothing is promised or written yet.

        :raises GuestGone, MoveRefused, CpusetError, PageMoveError, StateError: the move cannot be
            made
        """
        move, promised, targets = pending_move
        running: Iterable[model.Guest] = self._status_files.read()[0]
        if self._mover != history.PIN:
            running, _ = overrides.with_overrides(running, self._root)
        by_uuid = {guest.uuid: guest for guest in running}
        parts: list[MovePart] = []
        placement_options = self.options.host_options.placement_options
        for plan_part in move.parts:
            guest = by_uuid.get(plan_part.uuid)
            if guest is None:
                raise GuestGone('guest %s: ended before it was moved' % plan_part.name)
            reason_code = eligibility.why_not(eligibility.PROCEED, guest)
            if reason_code:
                detail = '' if guest.override else ' (%s)' % (guest.job or guest.state)
                raise MovePostponed(
                    'guest %s: %s%s' % (plan_part.name, eligibility.TEXTS[reason_code], detail)
                )
            before = promised.get(plan_part.uuid)
            if before is None:
                raise MoveRefused('guest %s: it has no promise' % plan_part.name)
            after = targets.get(plan_part.uuid) or promise_after(move, plan_part, before)
            if after.cpu_nodes != before.cpu_nodes:
                # As they are now, with earlier moves of the plan and guests started since.
                others = promises_file.read(self.options.host_options, self._root).promises
                for moved in move.parts:
                    others.pop(moved.uuid, None)
                others.update({part.plan_part.uuid: part.after for part in parts})
                after = narrow_to_l3(after, guest, host, list(others.values()), placement_options)
            parts.append(
                MovePart(
                    plan_part,
                    before,
                    after,
                    self._guest_move(move, plan_part, guest, host, before, after),
                    self._clock(),
                )
            )
        return tuple(parts)

    def record(self, parts: Sequence[MovePart], host: model.Topology) -> None:
        """Record the promises of all guests of a move, or of none.

        :raises MoveRefused: a guest's promise has changed since the move was planned, or there is
            no room any more
        """
        with promises_file.locked(self.options.host_options, self._root) as draft:
            for part in parts:
                if draft.promises.get(part.plan_part.uuid) != part.before:
                    raise MoveRefused(
                        'guest %s: its promise has changed since the move was planned'
                        % part.plan_part.name
                    )
                draft.put(part.after)
            self._check_room(parts, draft, host)

    def undo(self, part: MovePart) -> bool:
        """Promise a guest its former place again, unless its promise has changed again.

        :returns: whether the guest is promised its former place
        :raises StateError: the promise cannot be written
        """
        host_options = self.options.host_options
        with promises_file.locked(host_options, self._root, _UNDO_LOCK_TIMEOUT_S) as draft:
            if draft.promises.get(part.plan_part.uuid) == part.after:
                draft.put(part.before)
            return draft.promises.get(part.plan_part.uuid) == part.before

    def _guest_move(
        self,
        move: plan_records.Move,
        plan_part: plan_records.PlanPart,
        guest: model.Guest,
        host: model.Topology,
        before: model.Promise,
        after: model.Promise,
    ) -> guest_move.GuestMove | CpuMove:
        """Return the move of a guest's CPUs and memory, or of its CPUs only.

        :raises MoveRefused: the nodes have no CPU left that the guest may use, or its memory may
            not be brought there
        """
        if not pools.may_have_memory_on(plan_part.mem_nodes, host, guest):
            raise MoveRefused(
                'guest %s: %s'
                % (
                    plan_part.name,
                    '; '.join(allowed.limits(guest, self._root))
                    or 'its memory may not be on these nodes',
                )
            )
        groups = cgroups.of_guest(guest, self._root)
        written_cpus = common_cpus(groups)
        if written_cpus is None:  # a vCPU that was plugged in has not been held yet
            written_cpus = pools.cpus_of_promise(before, host, guest)
        cpus = None
        if move.kind != plan_records.FETCH and plan_part.to_nodes:
            cpus = pools.cpus_of_promise(after, host, guest)
            if not cpus:
                raise MoveRefused(
                    'guest %s: none of the CPUs that it may use is on these nodes any more'
                    % plan_part.name
                )
        if not plan_part.mem_nodes:
            return CpuMove(guest, groups, cpus, written_cpus, self._kernel)
        memory_move_count = sum(1 for part in move.parts if part.mem_nodes)
        rebalance_options = self.options.rebalance_options
        return guest_move.GuestMove(
            groups,
            plan_part.mem_nodes,
            cpus,
            written_cpus=written_cpus,
            root=self._root,
            limits=guest_move.PageMoveLimits(
                bytes_per_sec=max(1, rebalance_options.bytes_per_sec // memory_move_count),
                reserve_bytes=rebalance_options.reserve_bytes,
                room_wait_max_s=_ROOM_WAIT_MAX_S if memory_move_count > 1 else 0.0,
            ),
            mem_node_bytes=after.mem_node_bytes,
            clock=self._clock,
            kernel=self._kernel,
        )

    def _check_room(
        self, parts: Sequence[MovePart], host_promises: HostPromises, host: model.Topology
    ) -> None:
        """Raise :class:`MoveRefused` if the start of another guest has taken the room.

        It is raised under the lock, so that the promises are not written.
        """
        promised = host_promises.promises
        promised_before = {**promised, **{part.plan_part.uuid: part.before for part in parts}}
        nodes, nodes_before = (
            host_view.view(host, each.values(), self.options.host_options.placement_options).nodes
            for each in (promised, promised_before)
        )
        target_nodes = {node for part in parts for node in part.plan_part.mem_nodes}
        for node, before in zip(nodes, nodes_before):
            # A node that is full already may take back what is promised there.
            if node.id in target_nodes and node.promised_bytes > max(
                node.capacity_bytes, before.promised_bytes
            ):
                raise MoveRefused(
                    'node %d has no room left for %s'
                    % (node.id, ', '.join(part.plan_part.name for part in parts))
                )
