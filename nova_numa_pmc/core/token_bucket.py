# SPDX-License-Identifier: Apache-2.0
"""Limit a rate by a token bucket whose balance may go below zero."""

from __future__ import annotations

_CLOCK_STEP_S = 1e-6


class TokenBucket:
    """A balance that grows at a constant rate, and the time to wait before more may be spent.

    Spending may take the balance below zero, because it is not known beforehand how much a batch
    will move; nothing more may be spent until the balance is back at zero. Between any two times,
    at most burst + rate × time + the last amount is spent.
    """

    def __init__(self, rate_per_sec: float, burst: float, now_s: float) -> None:
        """Begin with a full bucket.

        :param rate_per_sec: the rate at which the balance grows, above 0
        :param burst: the highest balance, which it reaches while nothing is spent
        :param now_s: time of a clock that does not go back [s]
        """
        self._rate, self._burst = rate_per_sec, burst
        self._balance, self._updated_s = burst, now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time to wait before more may be spent [s]; 0 if it may be spent now."""
        self._refill(now_s)
        wait_s = -self._balance / self._rate
        # A shorter time than the clock can resolve is a rounding error.
        return wait_s if wait_s > _CLOCK_STEP_S else 0.0

    def spend(self, amount: float, now_s: float) -> None:
        """Subtract an amount, which may take the balance below zero."""
        self._refill(now_s)
        self._balance -= amount

    def _refill(self, now_s: float) -> None:
        # If the clock goes back nevertheless, the balance stays as it is.
        elapsed_s = max(0.0, now_s - self._updated_s)
        self._balance = min(self._burst, self._balance + elapsed_s * self._rate)
        self._updated_s = now_s
