# SPDX-License-Identifier: Apache-2.0
"""Evaluate a proposal: its gain, its cost and its sort order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import losses, plan_records
from nova_numa_pmc.core.rebalance.rebalance_memory import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nova_numa_pmc.core.rebalance.host_model import HostModel, Place
    from nova_numa_pmc.core.rebalance.layout import GuestModel
    from nova_numa_pmc.core.rebalance.proposals import Proposal
    from nova_numa_pmc.core.rebalance.rebalance_memory import RegretKey

    #: Of each guest: its uuid and where it goes, as positions, and in one order whichever guest
    #: comes first. A RegretKey has node ids: it holds across ticks.
    ProposalKey = tuple[tuple[str, tuple[int, ...], int | None], ...]

#: A widened guest is assumed to lose at least this share of its running time on other nodes than
#: its home, as it allocates new memory where it runs.
AWAY_RATIO = 0.02
#: Guests that may use several nodes absorb bursts there up to this share of their demand (assumed;
#: simulated with a half, a quarter and an eighth).
TAKEN_UP_RATIO = 0.25


class MoveCandidate:
    """A proposal with its gain and cost.

    :ivar proposal: of each guest, its model and where it goes
    :ivar kind: one of :data:`plan_records.KINDS`
    :ivar gain: [cores]; cost, regret: [core-seconds]; bytes
    :ivar fresh: whether the gain is up to date with the moves applied to the model
    """

    __slots__ = ('proposal', 'kind', 'gain', 'cost', 'bytes', 'regret', 'fresh', '_order')

    def __init__(self, host_model: HostModel, proposal: Proposal, gain: float) -> None:
        self.proposal, self.kind, self.gain = proposal, kind_of(proposal), gain
        self.cost = sum([host_model.cost(guest, place) for guest, place in proposal])
        self.bytes = sum([host_model.bytes_to_move(guest, place) for guest, place in proposal])
        self.regret, self.fresh = 0.0, True
        # Among equals the emptiest target comes first; names decide last.
        self._order = (
            self.bytes,
            round(sum(host_model.host_loss.pressure(place.cpus[0]) for _, place in proposal), 6),
            sorted((guest.load.uuid, place.cpus) for guest, place in proposal),
        )

    def overlaps(self, other: MoveCandidate) -> bool:
        """Return whether another candidate moves a guest that this one moves."""
        return any(mine is theirs for mine, _ in self.proposal for theirs, _ in other.proposal)

    def order(self, payback_s: float) -> tuple[object, ...]:
        """Return a sort key: net gain over a time, fewest bytes, emptiest target, names."""
        return (-round(self.gain * payback_s - self.cost, 6), *self._order)


def gain_of(host_model: HostModel, proposal: Proposal) -> float:
    """Return the gain of a proposal [cores]."""
    gain = host_model.host_loss.gain(
        [guest.effect for guest, _ in proposal],
        [host_model.effect(guest, place) for guest, place in proposal],
    )
    return _adjust_gain(host_model, *proposal[0], gain) if len(proposal) == 1 else gain


def regret_key(host_model: HostModel, proposal: Proposal) -> RegretKey:
    """Return a key of a proposal that is stable across ticks."""
    return tuple(
        sorted(
            (
                guest.load.uuid,
                host_model.node_ids(place.cpus),
                () if place.memory is None else host_model.ids[place.memory],
            )
            for guest, place in proposal
        )
    )


def distinct(*sequences: Iterable[Proposal]) -> dict[ProposalKey, Proposal]:
    """Return {key: proposal} of the proposals of all sequences."""
    proposals = {}
    for sequence in sequences:
        for proposal in sequence:
            proposal_key = tuple(
                [(guest.load.uuid, place.cpus, place.memory) for guest, place in proposal]
            )
            if len(proposal_key) > 1 and not proposal_key[0] < proposal_key[1]:
                proposal_key = proposal_key[::-1]
            proposals[proposal_key] = proposal
    return proposals


def kind_of(proposal: Proposal) -> str:
    """Return the kind of a proposal, of :data:`plan_records.KINDS`."""
    if len(proposal) > 1:
        return plan_records.SWAP
    ((guest, place),) = proposal
    now, then = set(guest.at), set(place.cpus)
    if now == then:
        return plan_records.FETCH
    return (
        plan_records.WIDEN
        if now < then
        else plan_records.NARROW
        if then < now
        else plan_records.MOVE
    )


def to_move(host_model: HostModel, candidate: MoveCandidate) -> plan_records.Move:
    """Turn a candidate into a :class:`plan_records.Move`; call it before it is applied."""
    return plan_records.Move(
        candidate.kind,
        tuple(_part(host_model, guest, place) for guest, place in candidate.proposal),
        candidate.gain,
        candidate.cost,
        candidate.regret,
        candidate.bytes,
        tuple(_reasons(host_model, candidate)),
    )


def _reasons(host_model: HostModel, candidate: MoveCandidate) -> Iterator[model.Reason]:
    """Yield what a candidate's gain is made of, the largest part first."""
    removed = [guest.effect for guest, _ in candidate.proposal]
    added = [host_model.effect(guest, place) for guest, place in candidate.proposal]
    spared = [
        now - then
        for now, then in zip(
            host_model.host_loss.by_cause(), host_model.host_loss.by_cause(removed, added)
        )
    ]
    spared.append(candidate.gain - sum(spared))
    causes = 'waiting', 'distance', 'bandwidth', 'crowding', 'bursts'
    counted = all(guest.counted for guest, _ in candidate.proposal)
    ends = (
        ('from', host_model.node_ids(candidate.proposal[0][0].at)),
        ('to', host_model.node_ids(candidate.proposal[0][1].cpus)),
    )
    for cores, cause in sorted(zip(spared, causes), reverse=True):
        if abs(cores) > 1e-6:
            assumed = cause == 'distance' and not counted
            rate = (('rate', plan_records.ASSUMED),) if assumed else ()
            yield model.Reason(cause, (('cores', cores), *ends, *rate))


def open_trial(host_model: HostModel, candidate: MoveCandidate, now_s: float) -> Trial:
    """Open the trial of a candidate; call it before it is applied."""
    return Trial(
        tuple(
            (
                guest.load.uuid,
                host_model.node_ids(guest.at),
                tuple((host_model.ids[at][0], share) for at, share in guest.mem_shares),
                host_model.node_ids(place.cpus),
            )
            for guest, place in candidate.proposal
        ),
        candidate.cost,
        0.0,
        now_s,
    )


def _part(host_model: HostModel, guest: GuestModel, place: Place) -> plan_records.PlanPart:
    return plan_records.PlanPart(
        guest.load.uuid,
        guest.load.name,
        tuple(guest.load.cpu_nodes),
        host_model.node_ids(place.cpus),
        () if place.memory is None else host_model.memory_ids[place.memory],
        host_model.bytes_to_move(guest, place),
    )


def _adjust_gain(host_model: HostModel, guest: GuestModel, place: Place, gain: float) -> float:
    """Return the gain of a proposal, corrected where it widens a guest or lets it go home."""
    if set(guest.at) < set(place.cpus):
        return gain + _pooled_gain(host_model, guest, place)
    if set(place.cpus) < set(guest.at) and place.memory is None and place.cpus == guest.home:
        return _homecoming_gain(host_model, guest, place, gain)
    return gain


def _pooled_gain(host_model: HostModel, guest: GuestModel, place: Place) -> float:
    """Return the gain of bursts on old nodes that find new ones idle, beyond levelling [cores].

    Independent bursts add in quadrature, so nodes that share their guests wait for
    h(ΣD, ΣC, √Σv²) instead of Σ h(D, C, v). Guests that may use both take up a part of
    it (:data:`TAKEN_UP_RATIO`); what is then left are bursts of both nodes together.
    """
    host_loss = host_model.host_loss
    if not any(host_loss.bursts[n] for n in place.cpus):
        return 0.0
    nodes = place.cpus
    demand = host_loss.levelled_demand()
    if len(guest.at) == 1:
        demand[guest.at[0]] -= guest.demand
        losses.level_out(demand, host_loss.cores, nodes, guest.demand)
    apart = sum(
        host_loss.wait(n, demand) - losses.waiting(demand[n], host_loss.cores[n], 0.0)
        for n in nodes
    )
    total, cores = (sum(values[n] for n in nodes) for values in (demand, host_loss.cores))
    spread = sum(host_loss.bursts[n] ** 2 for n in nodes) ** 0.5
    together = losses.waiting(total, cores, spread) - losses.waiting(total, cores, 0.0)
    shared = sum(
        wants
        for spanned, wants in host_loss.spanning.items()
        if spanned != guest.at and len(set(spanned).intersection(nodes)) > 1
    )
    return max(
        0.0,
        min(apart - together, TAKEN_UP_RATIO * (shared + guest.demand)) - TAKEN_UP_RATIO * shared,
    )


def _homecoming_gain(host_model: HostModel, guest: GuestModel, place: Place, gain: float) -> float:
    """Return the gain of going home: 0 if home has too little room, else at least a small one."""
    host_loss = host_model.host_loss
    others = dict(host_loss.spanning)
    others[guest.at] = others.get(guest.at, 0.0) - guest.demand
    demand = host_loss.levelled_demand(spanning=others)
    for n in place.cpus:
        if demand[n] + guest.demand > host_model.options.narrow_below_ratio * host_loss.cores[n]:
            return 0.0
    if gain < 0:
        return gain
    away = sum(share for n, share in guest.cpu_shares if n not in place.cpus)
    return max(gain, host_model.min_gain + AWAY_RATIO * guest.demand * away)
