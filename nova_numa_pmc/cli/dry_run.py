# SPDX-License-Identifier: Apache-2.0
"""Make the hook's decision for a guest without recording it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model, promises, usable_cpus
from nova_numa_pmc.cli import guest_lookup
from nova_numa_pmc.core import memory_domains, node_memory
from nova_numa_pmc.core.placement import candidates, placement, ranking
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import guests
from nova_numa_pmc.record import Record
from nova_numa_pmc.state.promises_file import HostPromisesDraft

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.conf.host_options import HostOptions


class PossiblePlace(Record):
    """Nodes that a guest could have.

    :param cpu_nodes, mem_nodes: node ids of the CPUs and of the memory
    :param pressure: the highest pressure on these nodes with the guest
    :param sort_key: {part of the sort key: its value}, a number, or a list for a set of nodes
    """

    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    pressure: float
    sort_key: dict[str, Any]


def draft(options: HostOptions, root: str) -> HostPromisesDraft:
    """Return a draft of the promises, which can be decided on without a lock and is never written.

    A start in progress is not waited for: the draft is a snapshot.
    """
    try:
        host_promises = promises.read(options, root)
    except StateError as error:
        return HostPromisesDraft(problem=str(error))
    return HostPromisesDraft(host_promises.promises, host_promises.rotation)


def decide_unrecorded(
    guest: model.Guest, options: HostOptions, root: str
) -> tuple[promises.Decision, model.Promise | None]:
    """Decide where a guest would go if it started now; nothing is recorded or written.

    :param guest: one that runs is taken off the host first
    :returns: (the decision, the promise that the host keeps for the guest, None: a new one)
    :raises NumaPmcError: the host cannot be read
    """
    host_promises = draft(options, root)
    recorded = host_promises.promises.get(guest.uuid)
    return promises.decide_promise(guest, options, root, 0, host_promises=host_promises), recorded


def withheld_memory(
    limits: model.PlacementOptions, root: str
) -> tuple[tuple[model.Node, model.NodeMemory], ...]:
    """List (node, its memory's kind) of the nodes whose memory is not for guests.

    :raises TopologyError: the host cannot be read
    """
    return node_memory.list_withheld(usable_cpus.host_with_pool_cpus(root).nodes, limits)


def possible_places(
    decision: promises.Decision, limits: model.PlacementOptions
) -> list[PossiblePlace]:
    """Return the possible places, the best first.

    :param decision: not a recalled one
    :returns: the places; empty: the guest is left alone
    """
    assert decision.request is not None and decision.view is not None
    if decision.request.placed_by or decision.request.policy == model.NONE:
        return []
    merged, members = memory_domains.merge(decision.view)
    nodes = decision.view.nodes
    inputs = candidates.PlacementInput(merged, members, decision.view, decision.request)

    def ids(positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(
            sorted(nodes[member].id for position in positions for member in members[position])
        )

    return [
        PossiblePlace(
            ids(rank.candidate.cpus),
            ids(rank.candidate.mems),
            rank.pressure,
            dict(zip(ranking.KEY_FIELDS, rank.key)),
        )
        for rank in placement.decide_place(inputs, limits).ranks
    ]


def find_running(name: str, root: str) -> model.Guest:
    """Return the running guest with this name, uuid or libvirt id.

    :raises UnknownGuest: there is none, or it cannot be read; says which are there
    """
    running, problems = guests.read_running(root)
    return guest_lookup.find(name, running, problems)
