# SPDX-License-Identifier: Apache-2.0
"""One guest's part of a move: its promise after the move, and whether its memory has followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view, pools
from nova_numa_pmc.core.placement import l3
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.host import holding
from nova_numa_pmc.host.page_moves import guest_move, page_mover
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.host.cgroups import GuestGroups
    from nova_numa_pmc.host.page_moves.kernel_calls import KernelCalls
    from nova_numa_pmc.host.writes import FileChange


class MovePart(Record):
    """One guest's part of a move in progress.

    :param plan_part: the same part in the plan
    :param before, after: the guest's promise before and after the move
    :param guest_move: the move of the guest's CPUs and memory, or only of its CPUs if no memory
        has to follow
    :param began_s: when the part began, on the executor's clock
    """

    plan_part: plan_records.PlanPart
    before: model.Promise
    after: model.Promise
    guest_move: guest_move.GuestMove | CpuMove
    began_s: float


class CpuMove:
    """A move of CPUs only, with those methods of :class:`guest_move.GuestMove` that are used.

    :param cpus: CPUs to hold the guest to; None for all CPUs that it may use
    :param written_cpus: the CPUs that we have left in its groups
    """

    def __init__(
        self,
        guest: model.Guest,
        groups: GuestGroups,
        cpus: frozenset[int] | None,
        written_cpus: frozenset[int],
        kernel: KernelCalls,
    ) -> None:
        self._guest = guest
        self._groups = groups
        self._cpus = cpus
        self._written_cpus = written_cpus
        self._kernel = kernel
        self._changes: tuple[FileChange, ...] = ()
        self.progress = guest_move.Progress(guest_move.MOVING)

    def step(self) -> guest_move.Progress:
        """Write the CPUs, which completes the move, and return the progress."""
        if self._cpus is None:
            self._changes = holding.release_cpus(
                self._groups,
                self._written_cpus,
                self._guest.allowed_cpus,
                self._guest.pinned_groups,
                self._kernel.write,
            )
        else:
            self._changes = holding.hold(
                self._groups, self._cpus, written_cpus=self._written_cpus, write=self._kernel.write
            ).changes
        self.progress = guest_move.Progress(guest_move.DONE)
        return self.progress

    def cancel(self) -> None:
        """Do nothing, since the CPUs are written in one step."""

    def undo_cpus(self) -> None:
        """Undo this move's changes of the CPU sets."""
        holding.undo(self._groups, self._changes, write=self._kernel.write)


def promise_after(
    move: plan_records.Move, plan_part: plan_records.PlanPart, before: model.Promise
) -> model.Promise:
    """Return the promise that a guest has after a move."""
    if move.kind == plan_records.WIDEN:
        return before._replace(widened_nodes=tuple(plan_part.to_nodes))
    after = before
    if move.kind != plan_records.FETCH:
        after = after._replace(
            cpu_nodes=tuple(plan_part.to_nodes),
            widened_nodes=(),
            origin=model.PLACED,
            missed=False,
        )
    if plan_part.mem_nodes and tuple(plan_part.mem_nodes) != before.mem_nodes:
        after = after._replace(mem_nodes=tuple(plan_part.mem_nodes), mem_node_bytes=())
    return after


def narrow_to_l3(
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
    if not pools.has_several_l3s(host, after.cpu_nodes):
        return after._replace(l3_cpus=())
    pool_host = pools.with_guest_pool(guest, host)
    view = host_view.view(pool_host, others, placement_options)
    domains = {
        view.domains[position] if view.domains else position
        for position, node in enumerate(view.nodes)
        if node.id in after.cpu_nodes
    }
    request = model.Request(guest.vcpus, guest.memory_bytes, allowed_cpus=guest.limit_cpus)
    cpus: tuple[int, ...] = ()
    if len(domains) == 1:
        cpus, _ = l3.choose(
            pool_host, view, tuple(others), after.cpu_nodes, request, placement_options
        )
    return after._replace(l3_cpus=cpus)


def has_followed(progress: guest_move.Progress) -> bool:
    """Return whether at least half of the memory that was to be moved has been moved."""
    if progress.state == guest_move.DONE:
        return True
    return progress.left_bytes is not None and progress.arrived_bytes >= progress.left_bytes


def progress_text(progress: guest_move.Progress) -> str:
    """Return text that describes the progress of an incomplete move."""
    left_text = (
        'an unknown amount'
        if progress.left_bytes is None
        else ('%d MiB' % (progress.left_bytes >> 20))
    )
    refused = ', '.join(
        '%d %s (%s)' % (count, page_mover.TEXTS.get(name, 'refused'), name)
        for name, count in progress.refused
    )
    return '%s, %s left%s' % (
        guest_move.TEXTS[progress.state],
        left_text,
        '; pages: ' + refused if refused else '',
    )
