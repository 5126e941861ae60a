# SPDX-License-Identifier: Apache-2.0
"""Ratios with intervals, duels, and the figures of the last line, from runs on the same seeds."""

import math

import numpy as np

from tests.arena import parameters as p, policies as registry

#: Student's t, two-sided 95 %, by degrees of freedom, starting with 1.
_STUDENT = tuple(
    map(
        float,
        '12.706 4.303 3.182 2.776 2.571 2.447 2.365 2.306 2.262 2.228 2.201 2.179 2.160 2.145 '
        '2.131 2.120 2.110 2.101 2.093 2.086 2.080 2.074 2.069 2.064 2.060 2.056 2.052 2.048 '
        '2.045 2.042'.split(),
    )
)
_NORMAL = 1.96


class Ratio:
    """A geometric mean of paired ratios with its 95 % interval; infinite for one pair."""

    def __init__(self, mean, low, high):
        """Store the values."""
        self.mean, self.low, self.high = mean, low, high

    def __str__(self):
        return f'{self.mean:.3f} ({self.low:.3f}–{self.high:.3f})'


def paired(ones, others):
    """Return the :class:`Ratio` of pairs, using Student's t of their logarithms."""
    return of_logs(
        [math.log(max(one, 1e-9) / max(other, 1e-9)) for one, other in zip(ones, others)]
    )


def of_logs(logs):
    """Return the :class:`Ratio` of ratios, given their logarithms."""
    count, mean = len(logs), sum(logs) / len(logs)
    if count < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    spread = math.sqrt(sum((each - mean) ** 2 for each in logs) / (count - 1) / count)
    half = spread * (_STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def summary(results):
    """Reduce the runs of one cell and seed to plain figures, by policy.

    The mean loss and p99 include only guests that every policy found a host for; otherwise, a
    policy that refuses large guests would benefit from their absence.

    :param results: {policy: :class:`tests.arena.region.Result`}
    """
    common = np.logical_and.reduce([result.wanted > 0 for result in results.values()])
    found = {}
    for name, result in results.items():
        wanted = result.wanted[common].sum()
        ratios = result.lost[common] / result.wanted[common]
        found[name] = {
            'loss': float(result.lost[common].sum() / wanted),
            'loss_second': float(result.lost_second[common].sum() / wanted),
            'p99': float(np.quantile(ratios, 0.99)),
            'ratios': ratios.astype(np.float32),
            'large': int(result.large),
            'large_placed': int(result.large_placed),
            'refused': int(result.refused),
            'emptied': float(result.emptied),
            'audits': result.audits,
            'sent': result.sent,
            'most_new': int(result.most_new),
            'migrated': result.migrated,
            'decisions': int(result.decisions),
            'boots': np.bincount(result.agent, result.given, 2).tolist(),
            'below': result.below.tolist(),
        }
    return found


class Table:
    """All runs.

    :ivar runs: {(cell's name, seed): what :func:`summary` returns}
    """

    def __init__(self, runs):
        """Store the runs."""
        self.runs = runs
        self.cells = sorted({cell for cell, _ in runs})
        self.policies = list(next(iter(runs.values())))

    def column(self, policy, figure, cell=None):
        """List a figure of a policy, ordered by cell and seed."""
        return [
            run[policy][figure]
            for (at, _), run in sorted(self.runs.items())
            if cell is None or at == cell
        ]

    def ratio(self, one, other, figure='loss', cell=None):
        """Return the paired ratio of two policies.

        Seeds of one cell are no independent cells. So the interval over all cells is that of the
        cells' means, and says what to expect of another cell.
        """
        if cell is None and len(self.cells) > 1:
            return of_logs(
                [math.log(self.ratio(one, other, figure, each).mean) for each in self.cells]
            )
        return paired(self.column(one, figure, cell), self.column(other, figure, cell))

    def total(self, policy, figure, cell=None):
        """Sum a figure."""
        return sum(self.column(policy, figure, cell))

    # ---- Duels ---------------------------------------------------------------------------

    def rivals(self, contender):
        """List the rivals of a contender: all but the oracle, itself and its variants."""
        kin = registry.VARIANTS if contender in registry.VARIANTS else (contender,)
        return [name for name in self.policies if name not in (*registry.ORACLES, *kin)]

    def duel(self, cell, contender, rival, figure='loss'):
        """Return 'won', 'lost' or 'undecided'.

        Won: the contender's mean loss (or another figure) exceeds the rival's by less than the
        margin, with 95 % confidence. Lost: it exceeds it by more, likewise. Undecided: the
        interval contains the margin, or there are too few seeds to tell.
        """
        ratio = self.ratio(contender, rival, figure, cell)
        if len(self.column(rival, figure, cell)) < p.SEEDS_LEAST:
            return 'undecided'
        if ratio.high <= 1 + p.MARGIN:
            return 'won'
        return 'lost' if ratio.low > 1 + p.MARGIN else 'undecided'

    def duels(self, contender, figure='loss'):
        """Return {(cell, rival): outcome}."""
        return {
            (cell, rival): self.duel(cell, contender, rival, figure)
            for cell in self.cells
            for rival in self.rivals(contender)
        }

    # ---- The gap -------------------------------------------------------------------------

    def gap(self, policy, cell=None):
        """Return the fraction of the way from stock at subset 10 to the oracle, by summed losses.

        :returns: None if these two are too close to each other
        """
        stock, best, ours = (
            self.total(name, 'loss', cell)
            for name in (registry.SPREAD_10, registry.ORACLE, policy)
        )
        return (stock - ours) / (stock - best) if stock - best > p.LEAST_GAP * stock else None

    def pooled(self, policy, quantile):
        """Return a quantile over the guests of all runs."""
        return float(np.quantile(np.concatenate(self.column(policy, 'ratios')), quantile))

    def figures(self, contender):
        """Return the figures of the last line."""
        gap = self.gap(contender)
        emptied = self.total(registry.PACK, 'emptied')
        large = self.total(registry.SPREAD, 'large_placed')
        audits = self.total(contender, 'audits')
        return {
            'contender': contender,
            'cells': len(self.cells),
            'runs': len(self.runs),
            **{
                f'duels_{outcome}{suffix}': list(self.duels(contender, figure).values()).count(
                    outcome
                )
                for suffix, figure in (('', 'loss'), ('_second', 'loss_second'), ('_p99', 'p99'))
                for outcome in ('won', 'lost', 'undecided')
            },
            'gap_closed': None if gap is None else _rounded(gap),
            'loss_to_spread': _rounded(self.ratio(contender, registry.SPREAD).mean),
            'large_to_stock': _rounded(self.total(contender, 'large_placed') / large)
            if large
            else None,
            'emptied_to_pack': _rounded(self.total(contender, 'emptied') / emptied)
            if emptied
            else None,
            'saves_to_audits': _rounded(self.total(contender, 'sent') / audits)
            if audits
            else None,
        }


def _rounded(value):
    return round(value, 4)
