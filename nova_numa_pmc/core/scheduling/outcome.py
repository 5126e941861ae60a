# SPDX-License-Identifier: Apache-2.0
"""Compute the pressures that a guest would leave on a host, as the scheduler needs them.

The same decision as :func:`placement.place`, on :class:`aggregates.Aggregates`. The usual
case, a single node of a host that knows the same parts of all its nodes, is computed here
without records, since place() takes as long as Nova's own weighers do for three hosts; the
rest goes through place()'s own parts. A property test holds both against place().
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import MIB, PRIOR_CORES_PER_VCPU, expected_traffic
from nova_numa_pmc.core.placement import candidates, ranking
from nova_numa_pmc.core.placement.placement import decide_place
from nova_numa_pmc.core.placement.ranking import PRESSURE_MAX
from nova_numa_pmc.core.scheduling.aggregates import is_uniform
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.aggregates import Aggregates, UniformAggregates

#: Rounding error of a difference of pressures.
_NOISE = 1e-6
#: Policies by which a guest is placed on one node if one has room.
_ONE_NODE_POLICIES = model.AUTO, model.ONE_NODE


class ExpectedGuest(Record):
    """A guest that is to be scheduled, the same for all hosts.

    :param vcpus, memory_mib: of its flavor; the mean of several guests has parts of vCPUs
    :param demand_cores: what it is expected to want [cores]
    :param policy: one of :data:`model.POLICIES`
    :param intensity: its traffic relative to the host's mean per core
    """

    vcpus: float
    memory_mib: int
    demand_cores: float
    policy: str = model.AUTO
    intensity: float = 1.0


class Outcome(Record):
    """Pressures of a host with one more guest.

    :param code: why it would go there, as place() says: 'one_node', 'span', 'spread',
        'cpus_only'; anything else: it would be left floating
    :param used: pressures of the domains that it would use, highest first, never empty;
        :data:`ranking.PRESSURE_MAX` on a host without a CPU that guests may use
    :param rest: pressures of the others, highest first
    :param at: positions of the domains used
    :param cpus, mems: the positions among them for the CPUs and for the memory,
        the latter empty where that may lie anywhere
    """

    code: str
    used: tuple[float, ...]
    rest: Sequence[float]
    at: tuple[int, ...]
    cpus: tuple[int, ...]
    mems: tuple[int, ...]


def outcome(host: Aggregates, guest: ExpectedGuest, limits: model.PlacementOptions) -> Outcome:
    """Return the pressures of a host with one more guest."""
    _, _, wanted, policy, intensity = guest
    if is_uniform(host) and policy in _ONE_NODE_POLICIES and limits.pressure_step > 0:
        # Without maxima there is no utilisation that traffic could add to.
        added = None
        if host.maximum and host.bandwidth and host.rate is not None:
            added = expected_traffic(wanted, intensity, host.rate)
        present = host.demand
        if present is None:
            present = [PRIOR_CORES_PER_VCPU * vcpus for vcpus in host.vcpus]
        charged = _pressures_with_guest(host, present, wanted, added or 0)
        best = _best(host, guest, charged, added, limits)
        if best is not None:
            rest: Sequence[float]
            if len(charged) == 2:
                rest = (_pressure_now(host, present, 1 - best),)
            else:
                rest = sorted(
                    (
                        _pressure_now(host, present, other)
                        for other in range(len(charged))
                        if other != best
                    ),
                    reverse=True,
                )
            # A record's own check of its arguments takes as long as the rest of this branch.
            at, pressed = (best,), (charged[best],)
            return tuple.__new__(Outcome, ('one_node', pressed, rest, at, at, at))
    return general_outcome(host, guest, limits)


def expected_guest(
    vcpus: float,
    memory_mib: int,
    policy: str = model.AUTO,
    intensity: float = 1.0,
    cores_per_vcpu: float = PRIOR_CORES_PER_VCPU,
) -> ExpectedGuest:
    """Return :class:`ExpectedGuest` for a guest without measurements."""
    return ExpectedGuest(vcpus, memory_mib, cores_per_vcpu * vcpus, policy, intensity)


def with_cores_per_vcpu(guest: ExpectedGuest, cores_per_vcpu: float) -> ExpectedGuest:
    """Return the guest with another estimate of what it wants per vCPU [cores]."""
    vcpus, memory_mib, _, policy, intensity = guest
    return tuple.__new__(
        ExpectedGuest, (vcpus, memory_mib, cores_per_vcpu * vcpus, policy, intensity)
    )


def _pressures_with_guest(
    host: UniformAggregates, present: Sequence[float], wanted: float, added: float
) -> list[float]:
    """List each domain's pressure with the guest on it."""
    charged = [(cores + wanted) / capacity for cores, capacity in zip(present, host.cores)]
    if host.maximum and host.bandwidth:
        charged = [
            max(pressure, (bandwidth + added) / maximum)
            for pressure, bandwidth, maximum in zip(charged, host.bandwidth, host.maximum)
        ]
    return list(map(max, charged, host.link)) if host.link else charged


def _pressure_now(host: UniformAggregates, present: Sequence[float], at: int) -> float:
    """Return a domain's pressure as it is."""
    pressure = present[at] / host.cores[at]
    if host.maximum and host.bandwidth:
        pressure = max(pressure, host.bandwidth[at] / host.maximum[at])
    return max(pressure, host.link[at]) if host.link else pressure


def _best(
    host: UniformAggregates,
    guest: ExpectedGuest,
    charged: Sequence[float],
    added: float | None,
    limits: model.PlacementOptions,
) -> int | None:
    """Find the position of the best single domain, None: the guest fits on none.

    Two of ranking.KEY_FIELDS drop out: the floored pressure, as steps are monotone and the
    lower pressure never has the higher floored one, and the distance.
    """
    vcpus, memory_mib, promised = guest.vcpus or 1, guest.memory_mib, host.promised_mib
    capacity = host.capacity_mib
    fits = [
        at
        for at, threads in enumerate(host.threads)
        if threads >= vcpus and capacity[at] - promised[at] >= memory_mib
    ]
    maximum = host.maximum
    if added and maximum and guest.policy == model.AUTO and min(maximum) < added:
        # A guest that alone exceeds a node's maximum, as in candidates.
        need = min(added, sum(maximum))
        fits = [at for at in fits if maximum[at] >= need]
    if len(fits) < 2:
        return fits[0] if fits else None
    step = limits.pressure_step
    # A pressure lower by more than a step is lower in steps, too.
    if len(fits) == 2:
        one, two = fits
        apart = charged[one] - charged[two]
        if apart > step + _NOISE and charged[one] < PRESSURE_MAX:
            return two
        if apart < -step - _NOISE and charged[two] < PRESSURE_MAX:
            return one
    steps = [
        int(charged[at] / step + 1e-9) if charged[at] <= 1 else ranking.steps(charged[at], limits)
        for at in fits
    ]
    least = min(steps)
    if steps.count(least) == 1:
        return fits[steps.index(least)]
    return min(
        (at for at, count in zip(fits, steps) if count == least),
        key=lambda at: (
            round((host.vcpus[at] + guest.vcpus) / host.cores[at], 9),
            round((promised[at] + memory_mib) / host.capacity_mib[at], 6),
            round(host.guests[at], 9),
            (at - host.rotation) % len(host.cores),
        ),
    )


def traffic(host: Aggregates, guest: ExpectedGuest) -> float | None:
    """Estimate a guest's traffic from the host's own [bytes/s]; None: unknown."""
    return expected_traffic(guest.demand_cores, guest.intensity, host.rate)


def request(host: Aggregates, guest: ExpectedGuest) -> model.Request:
    """Return the request that :func:`placement.place` takes, for a guest on this host."""
    return model.Request(
        guest.vcpus,  # type: ignore[arg-type]  # parts of one as a mean
        guest.memory_mib * MIB,
        policy=guest.policy,
        demand_cores=guest.demand_cores,
        bandwidth_bytes_per_sec=traffic(host, guest),
    )


def general_outcome(
    host: Aggregates, guest: ExpectedGuest, limits: model.PlacementOptions
) -> Outcome:
    """Return the pressures of a host with one more guest, by :func:`placement.decide_place`.

    A guest that would be left alone is taken to float over all nodes that have CPUs.
    """
    view = host.view()
    inputs = candidates.PlacementInput(
        view, tuple((at,) for at in range(len(view.nodes))), view, request(host, guest)
    )
    decided = decide_place(inputs, limits)
    if decided.ranks:
        best = decided.ranks[0].candidate
    else:
        cpus = tuple(at for at, cores in enumerate(host.cores) if cores)
        if not cpus:  # no CPU that the guest may use
            return Outcome(decided.reason.code, (PRESSURE_MAX,), (), (0,), (0,), ())
        best = candidates.Candidate(cpus, (), False)
    used, rest = ranking.pressures_with(inputs, best)
    at = tuple(sorted({*best.cpus, *best.mems}))
    return Outcome(decided.reason.code, tuple(used), rest, at, best.cpus, best.mems)
