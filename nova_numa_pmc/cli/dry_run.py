# SPDX-License-Identifier: Apache-2.0
"""Make the hook's decision for a guest without recording it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nova_numa_pmc import model, promises
from nova_numa_pmc.core.placement import candidates, placement, ranking
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.record import Record
from nova_numa_pmc.state.promises_file import HostPromisesDraft

if TYPE_CHECKING:
    from nova_numa_pmc.conf.host_options import HostOptions


class PossiblePlace(Record):
    """A place that a guest could be given.

    :param cpu_nodes, mem_nodes: ids of the nodes of its CPUs and of its memory
    :param pressure: the highest pressure that these nodes would have with the guest
    :param sort_key: {part of the sort key: value}; a value is a number, or a list of numbers for
        a set of nodes
    """

    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    pressure: float
    sort_key: dict[str, Any]


def read_draft(host_options: HostOptions, root: str) -> HostPromisesDraft:
    """Return a copy of the promises to decide with, which needs no lock and is never written.

    It does not wait for a guest's start in progress. If the promises cannot be read, the draft is
    empty and has the reason as its problem.
    """
    try:
        host_promises = promises.read(host_options, root)
    except StateError as error:
        return HostPromisesDraft(problem=str(error))
    return HostPromisesDraft(host_promises.promises, host_promises.rotation)


def decide_unrecorded(
    guest: model.Guest, host_options: HostOptions, root: str
) -> tuple[promises.Decision, model.Promise | None]:
    """Decide where a guest would go if it started now; nothing is recorded or written.

    :param guest: a new guest, or a running one, which is decided on as if it were not there
    :returns: (the decision, the guest's recorded promise or None)
    :raises NumaPmcError: the host cannot be read
    """
    draft = read_draft(host_options, root)
    recorded_promise = draft.promises.get(guest.uuid)
    decision = promises.decide_promise(guest, host_options, root, 0, given_draft=draft)
    return decision, recorded_promise


def possible_places(
    decision: promises.Decision, placement_options: model.PlacementOptions
) -> list[PossiblePlace]:
    """Return the possible places, the best first; none if the guest is left alone.

    :param decision: a decision with its view and request, which a recorded one does not have
    """
    assert decision.request is not None and decision.view is not None
    if decision.request.why_alone:
        return []
    inputs = candidates.PlacementInput(decision.view, decision.request)
    return [
        PossiblePlace(
            inputs.node_ids(rank.candidate.cpu_positions),
            inputs.node_ids(rank.candidate.mem_positions),
            rank.pressure,
            dict(zip(ranking.KEY_FIELDS, rank.key)),
        )
        for rank in placement.decide_place(inputs, placement_options).ranks
    ]
