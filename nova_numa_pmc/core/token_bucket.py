# SPDX-License-Identifier: Apache-2.0
"""Limit a rate by a token bucket that may go into debt."""

from __future__ import annotations

_CLOCK_STEP_S = 1e-6


class TokenBucket:
    """A balance that grows at a rate, and the time to wait before more may be spent.

    Spending may take the balance below zero, since it is not known beforehand how much a batch
    will move; then nothing more is spent until the debt is paid. So between any two
    times no more is spent than burst + rate × time + the last amount.
    """

    def __init__(self, rate_per_sec: float, burst: float, now_s: float) -> None:
        """Begin with a full bucket.

        :param rate_per_sec: above 0
        :param burst: the largest balance, which idle time adds up to
        :param now_s: seconds of a clock that never goes back
        """
        self._rate, self._burst = rate_per_sec, burst
        self._balance, self._at_s = burst, now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time to wait [s] before more may be spent; 0: now."""
        self._refill(now_s)
        wait_s = -self._balance / self._rate
        # A rounding error, shorter than the clock can resolve, is no debt.
        return wait_s if wait_s > _CLOCK_STEP_S else 0.0

    def spend(self, amount: float, now_s: float) -> None:
        """Subtract an amount, which may take the balance below zero."""
        self._refill(now_s)
        self._balance -= amount

    def _refill(self, now_s: float) -> None:
        # If the clock does go back, the balance stays as it is.
        passed_s = max(0.0, now_s - self._at_s)
        self._balance = min(self._burst, self._balance + passed_s * self._rate)
        self._at_s = now_s
