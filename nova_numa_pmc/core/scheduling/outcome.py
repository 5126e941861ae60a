# SPDX-License-Identifier: Apache-2.0
"""Compute what a guest would leave on a host, and what would be lost, for the scheduler.

The decision is that of :func:`placement.place`, made on :class:`host_columns.HostColumns`. The
usual case, a single node of a host that reports the same parts of pressure for all its nodes, is
computed here without records, because place() takes as long for one host as Nova's own weighers
take for three. Other cases use the functions that place() consists of. A property test compares
both with place().
"""

from __future__ import annotations

import functools
import math
from itertools import repeat
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import missing, pressure
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_bandwidth
from nova_numa_pmc.core.placement import candidates, loss, ranking, reasons
from nova_numa_pmc.core.placement.placement import decide_place
from nova_numa_pmc.core.placement.ranking import PRESSURE_MAX
from nova_numa_pmc.core.scheduling.host_columns import is_uniform
from nova_numa_pmc.model import MIB
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc.core.scheduling.host_columns import HostColumns, UniformHostColumns

#: Rounding error of the difference between two pressures.
_ROUNDING_ERROR = 1e-6
#: For a scheduler, the demand and traffic of other guests on a node are a weighted mean of the
#: node's own figures and the host's, spread evenly over its nodes. This is the weight of the
#: host's. When a guest starts, it meets the demand on its nodes; later, once the agent has moved
#: guests and others have arrived, it meets that of the host. In ``make arena``, values from 0.4 to
#: 1 differ less than seeds do.
HOST_SHARE = 0.8
#: Policies that place a guest on one node if one has room.
_ONE_NODE_POLICIES = model.AUTO, model.ONE_NODE


class ExpectedGuest(Record):
    """A guest that is to be scheduled.

    :param vcpus, memory_mib: its size by its flavor; a mean of several guests may have fractional
        vCPUs
    :param demand_cores: its expected demand [cores]
    :param policy: one of :data:`model.POLICIES`
    :param intensity: its traffic per core relative to the host's mean
    """

    vcpus: float
    memory_mib: int
    demand_cores: float
    policy: str = model.AUTO
    intensity: float = 1.0


class Outcome(Record):
    """Pressures of a host with one more guest.

    :param code: the kind of place, such as :data:`reasons.ON_ONE_NODE`; with the code of another
        reason, the guest would be left floating
    :param pressures: those of the domains that the guest would use, highest first, never empty;
        :data:`ranking.PRESSURE_MAX` if the host has no CPU that guests may use
    :param positions: positions of the domains that the guest would use
    :param cpu_positions, mem_positions: positions of the domains of its CPUs and of its memory;
        ``mem_positions`` is empty if the memory may be anywhere
    """

    code: str
    pressures: tuple[float, ...]
    positions: tuple[int, ...]
    cpu_positions: tuple[int, ...]
    mem_positions: tuple[int, ...]


def outcome(
    host: HostColumns, guest: ExpectedGuest, placement_options: model.PlacementOptions
) -> Outcome:
    """Return the pressures of a host with one more guest."""
    _, _, guest_cores, policy, _ = guest
    if is_uniform(host) and policy in _ONE_NODE_POLICIES and placement_options.pressure_step > 0:
        bandwidth, columns = bandwidth_on(host, guest), loss_columns(host)
        pressures = _pressures_with_guest(host, columns, repeat(guest_cores), bandwidth or 0)
        best = _best_position(host, guest, pressures, placement_options)
        if best is not None:
            lines = loss.guest_lines(guest_cores, bandwidth)
            positions = _least_loss(host, columns, guest, lines, best)
            if positions is not None:
                code, left = reasons.ON_ONE_NODE, [pressures[best]]
                if len(positions) > 1:
                    total = sum(host.cores)
                    shares = [guest_cores * (cores / total) for cores in host.cores]
                    pressures = _pressures_with_guest(host, columns, shares, (bandwidth or 0) / 2)
                    code, left = reasons.ON_SPAN, sorted(pressures, reverse=True)
                # A record's check of its arguments would take as long as the rest of this branch.
                return Outcome._make((code, tuple(left), positions, positions, positions))
    return outcome_by_placement(host, guest, placement_options)


def added_loss(
    host: HostColumns, host_outcome: Outcome, guest: ExpectedGuest, lines_per_core_sec: float
) -> loss.AddedLoss:
    """Return the utilisations that a guest would meet on a host, and the loss that it would cause.

    The loss is that by which a place is chosen (:mod:`nova_numa_pmc.core.placement.loss`), but at
    most what the guest wants.

    :param host_outcome: where the guest would go
    :param lines_per_core_sec: cache lines that it transfers per core-second
    """
    # Access by name would take as long as everything else here, and this runs for each host.
    _, _, _, cpu_positions, mem_positions = host_outcome
    ratios = loss.added_loss(
        loss_columns(host),
        cpu_positions,
        mem_positions,
        guest[2],
        lines_per_core_sec,
        HOST_SHARE,
        guest.policy != model.SPREAD,
    )
    return ratios if ratios[3] <= 1.0 else loss.AddedLoss._make((*ratios[:3], 1.0))


def loss_columns(host: HostColumns | UniformHostColumns) -> loss.Columns:
    """Return what a loss depends on."""
    if not is_uniform(host):
        return loss.columns(host.view())[0]
    demand, bandwidth = host.demand_cores, host.bandwidth_bytes_per_sec
    bandwidth_max = host.bandwidth_max_bytes_per_sec
    if demand is None:
        demand = [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]
    if not bandwidth or not bandwidth_max:
        bandwidth = bandwidth_max = []
    return loss.Columns._make(
        (
            host.cores,
            demand,
            bandwidth,
            bandwidth_max,
            host.link_ratio or (),
            host.distances,
            range(len(host.cores)),
            host.vcpus,
        )
    )


def expected_guest(
    vcpus: float,
    memory_mib: int,
    policy: str = model.AUTO,
    intensity: float = 1.0,
    cores_per_vcpu: float = PRIOR_CORES_PER_VCPU,
) -> ExpectedGuest:
    """Return the :class:`ExpectedGuest` for a guest without measurements."""
    return ExpectedGuest(vcpus, memory_mib, cores_per_vcpu * vcpus, policy, intensity)


def with_cores_per_vcpu(guest: ExpectedGuest, cores_per_vcpu: float) -> ExpectedGuest:
    """Return the guest with another expected demand per vCPU [cores]."""
    vcpus, memory_mib, _, policy, intensity = guest
    return ExpectedGuest._make((vcpus, memory_mib, cores_per_vcpu * vcpus, policy, intensity))


def _pressures_with_guest(
    host: UniformHostColumns,
    columns: loss.Columns,
    shares: Iterable[float],
    guest_bandwidth: float,
) -> list[float]:
    """Return, for each domain, the pressure that the guest would leave there.

    :param shares: the guest's demand on each domain [cores]
    :param guest_bandwidth: its traffic to each domain
    """
    all_cores, demand, bandwidths, maxima, *_ = columns
    pressures = [
        (cores + share) / capacity for cores, share, capacity in zip(demand, shares, all_cores)
    ]
    # Without maxima there is no utilisation that traffic could add to.
    if maxima:
        pressures = [
            max(pressure, (bandwidth + guest_bandwidth) / maximum)
            for pressure, bandwidth, maximum in zip(pressures, bandwidths, maxima)
        ]
    return list(map(max, pressures, host.link_ratio)) if host.link_ratio else pressures


def _best_position(
    host: UniformHostColumns,
    guest: ExpectedGuest,
    pressures: Sequence[float],
    placement_options: model.PlacementOptions,
) -> int | None:
    """Return the position of the best single domain; None if the guest fits on none.

    Two of :data:`ranking.KEY_FIELDS` make no difference here: the pressure above the floor,
    because a lower pressure is never the higher one after flooring, and the distance, which is 0.
    """
    vcpus, memory_mib, demand_cores, policy, _ = guest
    capacity, promised, all_cores = host.capacity_mib, host.promised_mib, host.cores
    cores_needed = 0.0
    if policy != model.ONE_NODE:
        cores_needed = min(loss.peak_cores(vcpus, demand_cores), sum(all_cores))
    positions = [
        position
        for position, cpu_count in enumerate(host.cpu_counts)
        if cpu_count >= (vcpus or 1)
        and all_cores[position] >= cores_needed
        and capacity[position] - promised[position] >= memory_mib
    ]
    if len(positions) < 2:
        return positions[0] if positions else None
    step = placement_options.pressure_step
    # A pressure that is lower by more than a step is also lower in steps.
    if len(positions) == 2:
        first, second = positions
        difference = pressures[first] - pressures[second]
        if difference > step + _ROUNDING_ERROR and pressures[first] < PRESSURE_MAX:
            return second
        if difference < -step - _ROUNDING_ERROR and pressures[second] < PRESSURE_MAX:
            return first
    step_counts = [
        int(pressures[position] / step + 1e-9)
        if pressures[position] <= 1
        else ranking.in_steps(pressures[position], placement_options)
        for position in positions
    ]
    fewest = min(step_counts)
    if step_counts.count(fewest) == 1:
        return positions[step_counts.index(fewest)]
    return min(
        (position for position, count in zip(positions, step_counts) if count == fewest),
        key=lambda position: (
            round((host.vcpus[position] + vcpus) / all_cores[position], 9),
            round((promised[position] + memory_mib) / capacity[position], 6),
            round(host.guests[position], 9),
            (position - host.rotation) % len(all_cores),
        ),
    )


def _least_loss(
    host: UniformHostColumns,
    columns: loss.Columns,
    guest: ExpectedGuest,
    lines: float,
    position: int,
) -> tuple[int, ...] | None:
    """Return the place with the least loss; None if more than two nodes have to be compared.

    :param lines: cache lines that the guest transfers per core-second
    :param position: the best single node
    """
    here, both = (position,), (0, 1)  # the only other place on a host of two
    vcpus, memory_mib, demand_cores, policy, _ = guest
    if policy == model.ONE_NODE or vcpus < 2:
        return here
    lost = loss.of_place(columns, here, here, vcpus, demand_cores, lines, True)
    least = lost - loss.GAIN_MIN_RATIO
    if least <= 0.0 or least <= span_loss_min(host.distances, lines):
        return here
    if len(host.cores) != 2:
        return None
    if 0 in host.cpu_counts or any(
        capacity - promised < memory_mib / 2
        for capacity, promised in zip(host.capacity_mib, host.promised_mib)
    ):
        return here
    lost = loss.of_place(columns, both, both, vcpus, demand_cores, lines, False)
    return both if lost < least else here


def span_loss_min(distances: tuple[tuple[float, ...], ...], lines_per_core_sec: float) -> float:
    """Return what a guest on several nodes loses at least, whatever its nodes are.

    Half of its accesses, or more, go at least to the nearest node.
    """
    return (
        lines_per_core_sec
        * pressure.LOCAL_LATENCY_NS
        * _nearest_ratio(distances)
        / 2
        * 1e-9
        / pressure.MLP_WITH_PREFETCH
    )


@functools.lru_cache(maxsize=64)
def _nearest_ratio(distances: tuple[tuple[float, ...], ...]) -> float:
    """Return the smallest distance to another node, in local ones beyond the first."""
    return min(
        (
            max(0.0, entry / row[a] - 1)
            for a, row in enumerate(distances)
            for b, entry in enumerate(row)
            if a != b
        ),
        default=math.inf,
    )


def bandwidth_on(host: HostColumns | UniformHostColumns, guest: ExpectedGuest) -> float | None:
    """Return a guest's traffic, estimated from its host's [bytes/s]; None if that is unknown."""
    return expected_bandwidth(guest.demand_cores, guest.intensity, host.bytes_per_core_sec)


def request(host: HostColumns, guest: ExpectedGuest) -> model.Request:
    """Return the request of a guest on this host, as :func:`placement.place` takes it."""
    return model.Request(
        guest.vcpus,  # type: ignore[arg-type]  # a mean may be fractional
        guest.memory_mib * MIB,
        policy=guest.policy,
        demand_cores=guest.demand_cores,
        bandwidth_bytes_per_sec=bandwidth_on(host, guest),
    )


def outcome_by_placement(
    host: HostColumns, guest: ExpectedGuest, placement_options: model.PlacementOptions
) -> Outcome:
    """Return the pressures of a host with one more guest, by :func:`placement.decide_place`.

    A guest that would be left alone is assumed to float over all nodes that have CPUs.
    """
    view = host.view()
    inputs = candidates.PlacementInput(view, request(host, guest))
    decision = decide_place(inputs, placement_options)
    if decision.ranks:
        best = decision.ranks[0].candidate
    else:
        cpu_positions = tuple(position for position, cores in enumerate(host.cores) if cores)
        if not cpu_positions:  # no CPU that the guest may use
            return Outcome(decision.reason.code, (PRESSURE_MAX,), (0,), (0,), ())
        best = candidates.Candidate(cpu_positions, (), False)
    pressures = ranking.pressures_with(inputs, best, missing.fill_in(view.nodes)[0])
    positions = tuple(sorted({*best.cpu_positions, *best.mem_positions}))
    return Outcome(
        decision.reason.code, tuple(pressures), positions, best.cpu_positions, best.mem_positions
    )


def pressures_elsewhere(host: HostColumns, host_outcome: Outcome) -> list[float]:
    """Return the pressures of the domains that the guest would not use, highest first."""
    return sorted(
        (
            pressure
            for position, pressure in enumerate(ranking.pressures(host.view()))
            if position not in host_outcome.positions
        ),
        reverse=True,
    )
