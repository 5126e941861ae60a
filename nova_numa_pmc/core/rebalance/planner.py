# SPDX-License-Identifier: Apache-2.0
"""Which guests to move, and when a move pays.

:func:`plan` is called once per interval with what was measured and what it remembers;
:func:`propose` answers what could be gained now, whatever has been paid. Pure: no clock, no
files; both arguments and results are records.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.rebalance import moves, regrets as ledgers
from nova_numa_pmc.core.rebalance.evaluation import Candidate, distinct, gain, key, made, trial
from nova_numa_pmc.core.rebalance.host_model import Ground, Place
from nova_numa_pmc.core.rebalance.proposals import proposals

TYPE_CHECKING = False  # not typing's, which is dear to import

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nova_numa_pmc.core.rebalance.evaluation import Identity
    from nova_numa_pmc.core.rebalance.proposals import Change
    from nova_numa_pmc.core.rebalance.regrets import Key, Ledger

#: Regrets kept between ticks, and candidates shown that are not due.
MOST_REGRETS, MOST_PENDING = 256, 8
#: Among moves that are due, the one that gains most over this time comes first [s].
HORIZON_S = 600.0
#: CPUs are not widened where a move is due within this time: it would only delay the cure [s].
BRIDGE_S = 60.0
#: Moves that :func:`propose` lists at most.
MOST_PROPOSED = 200


def plan(
    situation: moves.Situation, ledger: Ledger, terms: moves.Terms, elapsed_s: float, now_s: float
) -> tuple[moves.Plan, Ledger]:
    """Decide which guests to move now.

    Prepaid regret: R ← max(0, R + (G − min_gain) · Δt) for each candidate, which is due when
    R ≥ K · caution. What was lost by waiting has then paid for the move, so that the sum of
    loss and cost is within a constant of what hindsight would have paid (ski rental: Karlin,
    Manasse, Rudolph & Sleator 1988, "Competitive snoopy caching"). Among due moves the one
    with the largest G · 600 s − K comes first; the others are weighed again as if it were made
    and keep the share of their regret that they would still gain.

    :param ledger: that the last plan returned; an empty one at first
    :param elapsed_s: length of the interval that was measured [s]
    :param now_s: a clock that does not jump [s]
    :returns: (the plan, the next ledger, on the assumption that the moves are made; else call
        :func:`ledger.forgotten`)
    """
    elapsed_s = min(max(0.0, elapsed_s), terms.longest_tick_s)
    ground = Ground(situation, terms)
    ledger = ledgers.settled(ledger, ground, elapsed_s, now_s, terms)
    candidates = _with_regrets(ground, ledger, elapsed_s)
    before, chosen = ground.balance.loss(), []
    held: set[str] = set()
    while True:
        best = _due(ground, candidates, ledger, held)
        if best is None:
            break
        chosen.append(made(ground, best))
        ledger = ledgers.booked(ledger, chosen[-1], trial(ground, best, now_s), now_s)
        ground.apply(best.steps)
        candidates = [each for each in candidates if not best.shares(each)]
        for each in candidates:
            each.fresh = False
    candidates = [each for each in candidates if _refreshed(ground, each)]
    ledger = ledger._replace(
        regrets=tuple(ledgers.Regret(key(ground, each.steps), each.regret) for each in candidates)
    )
    return moves.Plan(
        tuple(chosen),
        _pending(ground, candidates, ledger),
        before,
        ground.balance.loss(),
        _remarks(ground, ledger, held),
    ), ledger


def propose(
    situation: moves.Situation, terms: moves.Terms, horizon_s: float = HORIZON_S
) -> moves.Plan:
    """List the moves that gain more than they cost within a time, best first, one by one.

    For an operator who asks now: no regret is needed, no budget applies. No guest is changed
    twice.

    :param horizon_s: for how long the load is taken to stay as it is [s]
    """
    ground = Ground(situation, terms)
    before = ground.balance.loss()
    chosen: list[moves.Move] = []
    settled: set[str] = set()
    while len(chosen) < MOST_PROPOSED:
        candidates = [
            Candidate(ground, steps, gain(ground, steps))
            for steps in distinct(proposals(ground)).values()
            if settled.isdisjoint(mover.guest.uuid for mover, _ in steps)
        ]
        paying = [
            each
            for each in candidates
            if each.gain >= ground.min_gain and each.gain * horizon_s > each.cost
        ]
        cures = _cures(paying)
        best = min(
            (each for each in paying if not _superfluous(each, cures)),
            key=lambda each: each.order(horizon_s),
            default=None,
        )
        if best is None:
            break
        chosen.append(made(ground, best))
        settled.update(mover.guest.uuid for mover, _ in best.steps)
        ground.apply(best.steps)
    return moves.Plan(
        tuple(chosen), (), before, ground.balance.loss(), _remarks(ground, ledgers.Ledger(), ())
    )


def _with_regrets(ground: Ground, ledger: Ledger, elapsed_s: float) -> list[Candidate]:
    """Weigh what is proposed and what has regrets already; keep what is nearest to being paid."""
    recalled = [(_recalled(ground, each.key), each.core_sec) for each in ledger.regrets]
    known = {}
    for steps, core_sec in recalled:
        if steps:
            (identity,) = distinct((steps,))
            known[identity] = core_sec
    remembered = [steps for steps, _ in recalled if steps]
    candidates = _weighed(ground, distinct(proposals(ground), remembered), known, elapsed_s)
    candidates.sort(key=lambda each: (-each.regret / max(each.cost, 1e-9), each.order(HORIZON_S)))
    return candidates[:MOST_REGRETS]


def _weighed(
    ground: Ground,
    changes: Mapping[Identity, Change],
    known: Mapping[Identity, float],
    elapsed_s: float,
) -> list[Candidate]:
    """Weigh changes and add the interval's regret to what is known; drop those without any."""
    candidates = []
    for identity, steps in changes.items():
        now = gain(ground, steps)
        regret = known.get(identity, 0.0) + (now - ground.min_gain) * elapsed_s
        if regret > 0:
            candidates.append(Candidate(ground, steps, now))
            candidates[-1].regret = regret
    return candidates


def _recalled(ground: Ground, named: Key) -> Change | None:
    """Turn a regret's key into steps; None: no longer possible."""
    steps = []
    for uuid, cpu_nodes, mem_nodes in named:
        mover = ground.movers.get(uuid)
        known = all(node in ground.position for node in cpu_nodes + mem_nodes)
        if mover is None or not known:
            return None
        place = Place(
            ground.positions(cpu_nodes), ground.position[mem_nodes[0]] if mem_nodes else None
        )
        if not ground.may(mover, place) or (
            place.cpus == mover.at and not ground.bytes_to_move(mover, place)
        ):
            return None
        steps.append((mover, place))
    return tuple(steps) if ground.fits(steps) else None


def _due(
    ground: Ground, candidates: list[Candidate], ledger: Ledger, held: set[str]
) -> Candidate | None:
    """Return the best candidate that has paid and is within the budgets; None: there is none.

    Gains that moves of this plan have made out of date are looked at again only where they
    could come first.

    :param held: gets the names of the budgets that held one back
    """
    factors, terms = ledgers.caution(ledger), ground.terms
    while True:
        soon = _soon(ground, candidates, ledger)
        due = []
        for each in candidates:
            if _gains(ground, each) and _missing(each, factors) <= 0:
                over = _budget_exceeded(each, ledger, terms)
                if over:
                    held.add(over)
                else:
                    due.append(each)
        best = min(
            (each for each in due if not _superfluous(each, soon)),
            key=lambda each: each.order(HORIZON_S),
            default=None,
        )
        if best is None or best.fresh:
            return best
        if not _refreshed(ground, best):
            candidates.remove(best)


def _gains(ground: Ground, candidate: Candidate) -> bool:
    """Return whether it gains more than noise; where no gain is too small, more than nothing."""
    return candidate.gain > 0 and candidate.gain >= ground.min_gain


def _missing(candidate: Candidate, factors: Mapping[str, float]) -> float:
    """Return what regret has yet to cover [core-seconds]; 0 or less: it is due."""
    return (
        candidate.cost * max(factors.get(mover.guest.uuid, 1.0) for mover, _ in candidate.steps)
        - candidate.regret
    )


def _soon(
    ground: Ground, candidates: Iterable[Candidate], ledger: Ledger
) -> dict[tuple[int, ...], float]:
    """Return {place: gain} of the best move from it that is due, or will be shortly."""
    factors = ledgers.caution(ledger)
    return _cures(
        each
        for each in candidates
        if each.gain >= ground.min_gain
        and _missing(each, factors) <= BRIDGE_S * each.gain
        and _budget_exceeded(each, ledger, ground.terms) != 'moves_per_hour'
    )


def _cures(candidates: Iterable[Candidate]) -> dict[tuple[int, ...], float]:
    """Return {place: gain} of the best move from it."""
    best: dict[tuple[int, ...], float] = {}
    for each in candidates:
        if each.kind in (moves.MOVE, moves.SWAP):
            for mover, _ in each.steps:
                best[mover.at] = max(each.gain, best.get(mover.at, 0.0))
    return best


def _superfluous(candidate: Candidate, soon: Mapping[tuple[int, ...], float]) -> bool:
    """Return whether it is a widening of which a move is about to spare at least half."""
    if candidate.kind != moves.WIDEN:
        return False
    ((mover, _),) = candidate.steps
    return soon.get(mover.at, 0.0) >= candidate.gain / 2


def _budget_exceeded(candidate: Candidate, ledger: Ledger, terms: moves.Terms) -> str:
    """Name the budget that a candidate would exceed; '' none."""
    count = len(candidate.steps)
    if not candidate.bytes:
        return (
            'changes_per_hour' if (len(ledger.changed_s) + count > terms.changes_per_hour) else ''
        )
    if len(ledger.moved_s) + count > terms.moves_per_hour:
        return 'moves_per_hour'
    alone = candidate.bytes > terms.bytes_per_tick and not ledger.owed_bytes
    if not alone and ledger.owed_bytes + candidate.bytes > terms.bytes_per_tick:
        return 'bytes_per_tick'
    return ''


def _refreshed(ground: Ground, candidate: Candidate) -> bool:
    """Look again at a candidate after a move; its regret shrinks as its gain has.

    :returns: whether it is still to be considered
    """
    if not candidate.fresh:
        if not ground.fits(candidate.steps):
            return False
        before = candidate.gain
        candidate.gain, candidate.fresh = gain(ground, candidate.steps), True
        if before > 0:
            candidate.regret *= max(0.0, min(1.0, candidate.gain / before))
    return candidate.regret > 0


def _pending(
    ground: Ground, candidates: Iterable[Candidate], ledger: Ledger
) -> tuple[moves.Move, ...]:
    """Show what is not due, one candidate per guest, the soonest first."""
    factors = ledgers.caution(ledger)

    def seconds(each: Candidate) -> float:
        return max(0.0, _missing(each, factors)) / each.gain

    shown: list[Candidate] = []
    soon = _soon(ground, candidates, ledger)
    gaining = [
        each for each in candidates if _gains(ground, each) and not _superfluous(each, soon)
    ]
    for each in sorted(gaining, key=lambda each: (seconds(each), each.order(HORIZON_S))):
        if len(shown) < MOST_PENDING and not any(each.shares(other) for other in shown):
            shown.append(each)
    return tuple(made(ground, each) for each in shown)


def _remarks(ground: Ground, ledger: Ledger, held: Collection[str]) -> tuple[model.Reason, ...]:
    """Return which budgets held moves back, and which parts are unknown."""
    remarks = []
    for name in sorted(held):
        value = {
            'bytes_per_tick': ledger.owed_bytes,
            'moves_per_hour': len(ledger.moved_s),
            'changes_per_hour': len(ledger.changed_s),
        }[name]
        remarks.append(model.Reason('budget', (('of', name), ('used', value))))
    unknown = ground.node_ids(n for n in ground.running if not ground.cpu_known[n])
    if unknown:
        remarks.append(model.Reason('demand_unknown', (('nodes', unknown),)))
    if not ground.bandwidth_known:
        remarks.append(model.Reason('bandwidth_dropped'))
    return tuple(remarks)
