# SPDX-License-Identifier: Apache-2.0
"""Decide on which nodes of a host a guest's CPUs and memory are placed.

The hook, the agent (for the guest starts that it finishes) and ``explain`` call :func:`place`.
So does the filter (:func:`pressure_with`); the weigher compares hosts by the mean of their nodes
(:mod:`losses`). The rebalancer decides from what guests lose (:mod:`planner`).

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.host_view import demand_or_prior, node_traffic_per_core, split_memory
from nova_numa_pmc.core.placement import candidates, loss, reasons
from nova_numa_pmc.core.placement.ranking import KEY_FIELDS, PRESSURE_MAX, rank_candidates
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.placement.candidates import Candidate, PlacementInput
    from nova_numa_pmc.core.placement.ranking import Rank


def with_traffic_per_core(
    history: model.DemandHistory, host_view: model.HostView
) -> model.DemandHistory:
    """Return the demand history of a host's guests with the traffic per core of the host."""
    merged, _ = memory_domains.merge(host_view)
    return history._replace(bytes_per_core_sec=node_traffic_per_core(merged.nodes))


def place(
    host_view: model.HostView, request: model.Request, placement_options: model.PlacementOptions
) -> model.Placement:
    """Decide where a guest belongs.

    A guest is placed on one node, unless guests would lose more there to waiting for CPUs and
    memory than the guest would lose to the distance between several (:mod:`loss`). The best place
    on one node is compared with the best on two, that with the best on three, and so on, until one
    more saves nothing. If no nodes hold the guest, only its CPUs are placed, by the same rule, and
    its memory is left unbound; if that is not possible either, the guest is left alone.

    Nodes hold a guest if they have a CPU for each vCPU, cores for what it may want at its peak
    (:func:`loss.peak_cores`), and memory that may still be promised; the vCPUs of other guests
    count as pressure and are not a limit. Places on as many nodes are compared in this order
    (:data:`ranking.KEY_FIELDS`):

    1. The pressures that the guest would leave on the candidate's nodes, highest first, at least
       the option ``pressure_floor`` and in steps of ``pressure_step``. Other nodes do not
       count. For single nodes, sorting by the pressures of the whole host would give the same
       order, except that, if they are rounded, a step on a calm node could outweigh the guest's
       own.
    2. The distance of memory and devices from the CPUs, in SLIT units beyond local.
    3. The same pressures without the floor, in the same steps, so that measurement noise does not
       send all of several equal guests to one node.
    4. Of how many resources there is not enough for what the guest may grow to
    5. vCPUs per core
    6. Promised memory per capacity
    7. Guests
    8. Rotation

    Pressure is the highest of CPU demand per capacity, bandwidth per maximum and link utilisation.
    A part that is unknown for some nodes is assumed to be the upper quartile of the others
    (:mod:`missing`). If demand is measured on no node, it is assumed to be 0.5 cores per promised
    vCPU.

    :param host_view: a view from :func:`host_view.view` or from Nova's metrics
    :returns: a placement, which has no nodes if the guest is left alone
    """
    if request.why_alone:
        return _leave_alone(model.Reason(request.why_alone, (('by', request.placed_by),)))
    inputs = candidates.PlacementInput(host_view, request)
    decision = decide_place(inputs, placement_options)
    if not decision.ranks:
        return _leave_alone(decision.reason)
    return _placement(inputs, decision)


def pressure_with(inputs: PlacementInput, placement_options: model.PlacementOptions) -> float:
    """Return the highest pressure that a guest would leave on its nodes.

    A guest that would be left alone is assumed to float over all nodes that have CPUs.
    """
    if not any(inputs.cpu_counts):
        return PRESSURE_MAX
    ranks = decide_place(inputs, placement_options).ranks
    if not ranks:
        ranks, _ = rank_candidates(inputs, candidates.all_nodes(inputs), placement_options)
    return ranks[0].pressure


class PlaceDecision(Record):
    """The kind of place that was decided on, and its candidates in order.

    :param reason: why the guest is left alone, or, if there are ``ranks``, the code of the kind
    :param ranks: the candidates, best first; empty if the guest is left alone
    :param assumed: codes of the parts of pressure that are assumed for some nodes (:mod:`missing`)
    """

    reason: model.Reason
    ranks: Sequence[Rank] = ()
    assumed: tuple[str, ...] = ()


def decide_place(
    inputs: PlacementInput, placement_options: model.PlacementOptions
) -> PlaceDecision:
    """Decide on the kind of place for a guest, and order its candidates."""
    request = inputs.request
    if sum(inputs.cpu_counts) < max(1, request.vcpus):
        return PlaceDecision(
            model.Reason(
                reasons.TOO_FEW_CPUS,
                (('vcpus', request.vcpus), ('cpu_count', sum(inputs.cpu_counts))),
            )
        )
    if request.policy == model.SPREAD:
        return PlaceDecision(
            model.Reason(reasons.ON_ALL_NODES),
            *rank_candidates(inputs, candidates.all_nodes(inputs), placement_options),
        )
    for needs_memory in (True, False):
        decision = _least_loss(inputs, needs_memory, placement_options)
        if decision is not None:
            return decision
    return PlaceDecision(
        model.Reason(
            reasons.NO_SINGLE_NODE,
            (('vcpus', request.vcpus), ('cpu_count', max(inputs.cpu_counts))),
        )
    )


def _least_loss(
    inputs: PlacementInput, needs_memory: bool, placement_options: model.PlacementOptions
) -> PlaceDecision | None:
    """Decide among the places that hold a guest, with its memory if it needs it.

    :returns: None if there are none
    """
    host, assumed = loss.columns(inputs.view_by_domain)
    cores = demand_or_prior(inputs.request)
    lines = loss.guest_lines(cores, inputs.request.bandwidth_bytes_per_sec)
    best, best_lost = None, 0.0
    for places in candidates.by_size(inputs, needs_memory):
        ranks = rank_candidates(inputs, places, placement_options)[0]
        place = ranks[0].candidate
        lost = loss.of_place(
            host,
            place.cpu_positions,
            place.mem_positions,
            inputs.request.vcpus,
            cores,
            lines,
            best is None,
        )
        if best is not None and lost >= best_lost - loss.GAIN_MIN_RATIO:
            break
        is_one = len(place.cpu_positions) == 1 and len(place.mem_positions) < 2
        code = reasons.ON_ONE_NODE if is_one else reasons.ON_SPAN
        reason = model.Reason(code if needs_memory else reasons.CPUS_ONLY)
        best, best_lost = PlaceDecision(reason, ranks, assumed), lost
        if lost <= loss.GAIN_MIN_RATIO:
            break
    return best


def new_promise(
    guest: model.Guest, placement: model.Placement, since_ns: int, l3_cpus: tuple[int, ...] = ()
) -> model.Promise:
    """Return what a host promises to a guest with a placement.

    :param since_ns: as in :class:`model.Promise`
    :param l3_cpus: CPUs of the L3 cache that the guest is held to; empty: it is held to none
    :returns: a promise of where we or others placed the guest, or else of a floating guest
    """
    if guest.placed_by:
        # Memory that <numatune> does not bind is allocated where the vCPUs run.
        cpu_nodes, mem_nodes = guest.pinned_nodes, guest.numatune_nodes or guest.pinned_nodes
        origin = model.BY_OTHERS
    else:
        cpu_nodes, mem_nodes = placement.cpu_nodes, placement.mem_nodes
        origin = model.PLACED if placement.cpu_nodes else model.FLOATING
    return model.Promise(
        guest.uuid,
        guest.name,
        tuple(cpu_nodes),
        tuple(mem_nodes),
        guest.vcpus,
        guest.memory_bytes,
        guest.page_bytes,
        origin=origin,
        since_ns=since_ns,
        l3_cpus=l3_cpus,
        mem_node_bytes=placement.mem_node_bytes if origin == model.PLACED else (),
    )


def _leave_alone(reason: model.Reason) -> model.Placement:
    return model.Placement((), None, (reason,))


def _placement(inputs: PlacementInput, decision: PlaceDecision) -> model.Placement:
    """Turn the best candidate into a placement with its reasons."""
    candidate, code = decision.ranks[0].candidate, decision.reason.code
    cpu_nodes = inputs.node_ids(
        candidate.cpu_positions + candidate.mem_positions
        if candidate.memory_fits and candidate.mem_positions != candidate.cpu_positions
        else candidate.cpu_positions
    )
    # cgroup v1 and older v2 refuse to bind memory to a node that has none.
    memoryless_ids = {
        node.id for node in inputs.view_by_node.nodes if memory_domains.is_memoryless(node)
    }
    mem_nodes = tuple(
        node for node in inputs.node_ids(candidate.mem_positions) if node not in memoryless_ids
    )
    return model.Placement(
        cpu_nodes,
        _cpus(inputs, candidate),
        (_verdict(inputs, decision), *_remarks(inputs, code, decision.assumed)),
        mem_nodes,
        _division(inputs, mem_nodes) if len(mem_nodes) > 1 else (),
    )


def _division(inputs: PlacementInput, mem_nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Divide the memory of a guest on several nodes in proportion to what these have left.

    The division is recorded with the promise. If it were computed again each time, two guests with
    overlapping nodes could seem to overfill one of them once a third guest has gone.
    """
    request = inputs.request
    unpromised_bytes = candidates.unpromised_bytes(
        [node for node in inputs.view_by_node.nodes if node.id in mem_nodes], request
    )
    return tuple(
        split_memory(
            request.memory_bytes,
            [max(0, node_bytes) for node_bytes in unpromised_bytes],
            request.page_bytes,
        )
    )


def _verdict(inputs: PlacementInput, decision: PlaceDecision) -> model.Reason:
    """Return the reason why the best candidate is preferred to the second."""
    ranks = decision.ranks
    best = ranks[0]
    values: tuple[tuple[str, object], ...] = (
        ('pressure', best.pressure),
        ('distance', best.distance),
    )
    if best.candidate.mem_positions:
        values += (('promised_ratio', best.promised_ratio),)
    if len(ranks) > 1:
        second = ranks[1]
        field = next(
            (
                field
                for field, best_value, second_value in zip(KEY_FIELDS, best.key, second.key)
                if best_value != second_value
            ),
            KEY_FIELDS[-1],
        )
        values += (
            ('decided_by', field),
            ('instead_of', inputs.node_ids(second.candidate.cpu_positions)),
            ('instead_pressure', second.pressure),
        )
    return model.Reason(decision.reason.code, values)


def _cpus(inputs: PlacementInput, candidate: Candidate) -> frozenset[int] | None:
    cpu_sets = [
        cpus
        for cpus in (
            inputs.view_by_domain.nodes[position].cpus for position in candidate.cpu_positions
        )
        if cpus is not None
    ]
    if len(cpu_sets) < len(candidate.cpu_positions):
        return None
    return inputs.request.allowed_among(frozenset().union(*cpu_sets))


def _remarks(
    inputs: PlacementInput, code: str, assumed: tuple[str, ...]
) -> tuple[model.Reason, ...]:
    """Return remarks on what did not fit, and on what was unknown or assumed."""
    remarks: tuple[model.Reason, ...] = ()
    if code == reasons.ON_SPAN and candidates.single_node_candidates(inputs):
        remarks += (model.Reason(reasons.ONE_NODE_WAITS),)
    elif code in (reasons.ON_SPAN, reasons.CPUS_ONLY):
        remarks += (
            model.Reason(
                reasons.NO_NODE_FITS,
                (
                    ('vcpus', inputs.request.vcpus),
                    ('cpu_count', max(inputs.cpu_counts)),
                    ('memory_bytes', inputs.request.memory_bytes),
                    ('unpromised_bytes', max(0, *inputs.unpromised_bytes)),
                ),
            ),
        )
    request = inputs.request
    if request.vcpus_max or request.memory_max_bytes:
        remarks += (
            model.Reason(
                reasons.MAY_GROW,
                (
                    ('vcpus', request.vcpus),
                    ('memory_bytes', request.memory_bytes),
                    ('vcpus_max', request.vcpus_max or request.vcpus),
                    ('memory_max_bytes', request.memory_max_bytes or request.memory_bytes),
                ),
            ),
        )
    nodes = inputs.view_by_domain.nodes
    if any(node.bandwidth_bytes_per_sec is not None for node in nodes) and not any(
        node.bandwidth_max_bytes_per_sec for node in nodes
    ):
        remarks += (model.Reason(reasons.BANDWIDTH_DROPPED),)
    return remarks + tuple(map(model.Reason, assumed))
