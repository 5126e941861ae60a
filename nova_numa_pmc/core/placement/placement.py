# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes of a host a guest's CPUs and memory belong on: the one decision.

The hook, the agent for the starts that it finishes, and ``explain`` ask :func:`place`. For the
weigher and the filter, :mod:`outcome` comes to the same places, by :func:`decide_place` or
faster. The rebalancer decides by what guests lose (:mod:`planner`). Imported by the libvirt hook
at every guest start: light modules only.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.core.host_view import bytes_per_core_sec, split_bytes
from nova_numa_pmc.core.placement import candidates
from nova_numa_pmc.core.placement.ranking import KEY_FIELDS, costs, rank_candidates

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nova_numa_pmc.core.placement.candidates import Candidate, PlacementInput
    from nova_numa_pmc.core.placement.ranking import Rank


def with_traffic_rate(
    history: model.DemandHistory | None, host_view: model.HostView
) -> model.DemandHistory:
    """Return a demand history with the traffic rate of its host.

    :param history: of the host's guests; None: there is none
    """
    merged, _ = memory_domains.merge(host_view)
    return (history or model.DemandHistory())._replace(
        bytes_per_core_sec=bytes_per_core_sec(merged.nodes)
    )


def place(
    host_view: model.HostView, request: model.Request, limits: model.PlacementOptions
) -> model.Placement:
    """Decide where a guest belongs.

    One node if the guest fits, else the smallest and closest set of nodes, else CPUs
    only with memory left unbound, else nothing. It fits when the nodes have a thread for
    each vCPU and what is left to promise covers its memory; other guests' vCPUs are
    pressure, not a limit. Among feasible candidates, compared in this order
    (:data:`ranking.KEY_FIELDS`):

    1. the pressures that it leaves on the candidate's own nodes, highest first, at
       least ``limits.pressure_floor`` and in steps of ``limits.pressure_step``. The other
       nodes do not enter: for single nodes the order is the same as that of the whole
       host's sorted pressures, but rounding those would let a calm node's step outweigh
       the guest's own
    2. distance of memory and devices from the CPUs, SLIT units beyond local
    3. the same pressures without the floor, in the same steps: measurement noise must
       not tip equal guests to one side
    4. vCPUs per core, 5. promised memory per capacity, 6. guests, 7. rotation

    Pressure is the highest of CPU wanted per capacity, bandwidth per maximum and link
    utilisation; a part that some nodes do not know is taken as the upper quartile of those
    that do (:mod:`missing`). Demand that is measured nowhere is taken as 0.5 cores per
    promised vCPU.

    :param host_view: from :func:`host_view.view` or from Nova's metrics
    :returns: no nodes: leave the guest alone
    """
    if request.placed_by:
        return _leave_alone(model.Reason('placed_by_others', (('by', request.placed_by),)))
    if request.policy == model.NONE:
        return _leave_alone(model.Reason('policy_none'))
    merged, members = memory_domains.merge(host_view)
    inputs = candidates.PlacementInput(merged, members, host_view, request)
    decided = decide_place(inputs, limits)
    if not decided.ranks:
        return _leave_alone(decided.reason)
    return _placement(host_view, members, inputs, decided)


class PlaceDecision:
    """The kind of place that was decided on, and the order of its candidates.

    :ivar reason: only the verdict's code if there are ``ranks``
    :ivar ranks: best first; empty: nowhere
    :ivar assumed: the parts of pressure that some nodes do not know (:mod:`missing`)
    """

    __slots__ = ('reason', 'ranks', 'assumed')

    def __init__(
        self, reason: model.Reason, ranks: Sequence[Rank] = (), assumed: tuple[str, ...] = ()
    ) -> None:
        self.reason, self.ranks, self.assumed = reason, ranks, assumed


def decide_place(inputs: PlacementInput, limits: model.PlacementOptions) -> PlaceDecision:
    """Order the places that a guest could have."""
    request = inputs.request
    if sum(inputs.threads) < max(1, request.vcpus):
        return PlaceDecision(
            model.Reason(
                'too_few_cpus', (('vcpus', request.vcpus), ('threads', sum(inputs.threads)))
            )
        )
    for code, places in candidates.kinds_of_place(inputs, lambda: costs(inputs, limits)):
        if places:
            return PlaceDecision(model.Reason(code), *rank_candidates(inputs, places, limits))
    return PlaceDecision(
        model.Reason(
            'no_single_node', (('vcpus', request.vcpus), ('threads', max(inputs.threads)))
        )
    )


def promise(guest: model.Guest, placement: model.Placement, now_ns: int) -> model.Promise:
    """Record what a host promises to a guest with a placement.

    :param now_ns: CLOCK_BOOTTIME
    :returns: where we placed it, or where others pinned it, or floating
    """
    if guest.placed_by:
        # What numatune does not bind is allocated where the vCPUs run.
        cpu_nodes, mem_nodes = guest.cpu_nodes, guest.mem_nodes or guest.cpu_nodes
        origin = model.PINNED
    else:
        cpu_nodes, mem_nodes = placement.nodes, placement.mem_nodes
        origin = model.PLACED if placement.nodes else model.FLOATING
    return model.Promise(
        guest.uuid,
        guest.name,
        tuple(cpu_nodes),
        tuple(mem_nodes),
        guest.vcpus,
        guest.memory_bytes,
        guest.page_bytes,
        origin=origin,
        since_ns=now_ns,
        mem_bytes=placement.mem_bytes if origin == model.PLACED else (),
    )


def _leave_alone(reason: model.Reason) -> model.Placement:
    return model.Placement((), None, (reason,))


def _placement(
    host_view: model.HostView,
    members: Sequence[tuple[int, ...]],
    inputs: PlacementInput,
    decided: PlaceDecision,
) -> model.Placement:
    """Turn the best candidate into a placement with its reasons."""
    best, code = decided.ranks[0].candidate, decided.reason.code

    def ids(positions: tuple[int, ...]) -> tuple[int, ...]:
        if len(positions) == 1 and len(members[positions[0]]) == 1:
            return (host_view.nodes[members[positions[0]][0]].id,)
        return tuple(
            sorted({host_view.nodes[member].id for at in positions for member in members[at]})
        )

    nodes = ids(
        best.cpus + best.mems if best.memory_fits and best.mems != best.cpus else best.cpus
    )
    # A node without memory has none to be bound to: cgroup v1 and older v2 refuse it.
    without = {node.id for node in host_view.nodes if candidates.is_memoryless(node)}
    mem_nodes = tuple(node for node in ids(best.mems) if node not in without)
    return model.Placement(
        nodes,
        _cpus(inputs, best),
        (_verdict(code, decided.ranks, ids), *_remarks(inputs, code, decided.assumed)),
        mem_nodes,
        _division(host_view, inputs.request, mem_nodes) if len(mem_nodes) > 1 else (),
    )


def _division(
    host_view: model.HostView, request: model.Request, mem_nodes: tuple[int, ...]
) -> tuple[int, ...]:
    """Divide a spanning guest's memory in proportion to what its nodes have left.

    The division is recorded with the promise. If it were computed anew each time, two guests
    with overlapping nodes could seem to overfill one of them once a third guest has gone.
    """
    free = candidates.free_bytes(
        [node for node in host_view.nodes if node.id in mem_nodes], request
    )
    return tuple(split_bytes(request.memory_bytes, [max(0, left) for left in free]))


def _verdict(
    code: str, ranks: Sequence[Rank], ids: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> model.Reason:
    """Return why the best candidate won, and over which."""
    best = ranks[0]
    values: tuple[tuple[str, object], ...] = (
        ('pressure', best.pressure),
        ('distance', best.key[1]),
        ('promised_ratio', best.key[4]),
    )
    if len(ranks) > 1:
        second = ranks[1]
        field = next(
            (
                field
                for field, ours, theirs in zip(KEY_FIELDS, best.key, second.key)
                if ours != theirs
            ),
            KEY_FIELDS[-1],
        )
        values += (
            ('decided_by', field),
            ('instead_of', ids(second.candidate.cpus)),
            ('instead_pressure', second.pressure),
        )
    return model.Reason(code, values)


def _cpus(inputs: PlacementInput, candidate: Candidate) -> frozenset[int] | None:
    sets = [
        cpus for cpus in (inputs.view.nodes[at].cpus for at in candidate.cpus) if cpus is not None
    ]
    if len(sets) < len(candidate.cpus):
        return None
    cpus = frozenset().union(*sets)
    return cpus if inputs.request.allowed_cpus is None else cpus & inputs.request.allowed_cpus


def _remarks(
    inputs: PlacementInput, code: str, assumed: tuple[str, ...]
) -> tuple[model.Reason, ...]:
    """Return remarks on what the decision had to do without."""
    remarks: tuple[model.Reason, ...] = ()
    if code in ('span', 'cpus_only'):
        remarks += (
            model.Reason(
                'no_node_fits',
                (
                    ('vcpus', inputs.request.vcpus),
                    ('threads', max(inputs.threads)),
                    ('memory_bytes', inputs.request.memory_bytes),
                    ('free_bytes', max(0, *inputs.free_bytes)),
                ),
            ),
        )
    nodes = inputs.view.nodes
    if any(node.bandwidth_bytes_per_sec is not None for node in nodes) and not any(
        node.bandwidth_max_bytes_per_sec for node in nodes
    ):
        remarks += (model.Reason('bandwidth_dropped'),)
    return remarks + tuple(model.Reason(part + '_assumed') for part in assumed)
