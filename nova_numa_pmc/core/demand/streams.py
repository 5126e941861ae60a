# SPDX-License-Identifier: Apache-2.0
"""Mean, variance and quantiles of a quantity over a horizon, in bounded memory.

What was a time t ago weighs exp(-t / horizon). Instead of making old weights smaller, new ones
are made larger: G. Cormode, V. Shkapenyuk, D. Srivastava, B. Xu, "Forward decay", ICDE 2009, so
that an observation costs the same whatever is remembered.

Mean and variance: D. H. D. West, "Updating mean and variance estimates", CACM 22(9), 1979.
Quantiles: bins that grow geometrically, as in C. Masson, J. E. Rim, H. K. Lee, "DDSketch",
VLDB 2019, which bounds their relative error.
"""

from __future__ import annotations

import math

#: A quantile is at most this part of it off, above its series' unit.
RELATIVE_ERROR = 0.1
#: Bins of one series; with the unit 0.01 the last one ends at 3,000.
BINS = 64
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
#: Weights are scaled back before they come near the largest float.
_SCALE_MAX = 1e100
#: Bins with a smaller part of a stream's weight are forgotten when it is scaled or written.
_MIN_SHARE = 1e-4


class Horizon:
    """Weight of an observation of now beside the earlier ones of the same horizon.

    :ivar horizon_s: after this time an observation weighs 1/e of a new one [s]
    :ivar scale: what a second of now weighs
    """

    __slots__ = ('horizon_s', 'scale')

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s, self.scale = horizon_s, 1.0

    def advance(self, seconds: float) -> float:
        """Let time pass; return what the observation of that time weighs.

        It is the integral of the weights of its moments, so that an interval that is cut in
        two weighs as much as the whole.

        :param seconds: at most a hundred horizons
        """
        self.scale *= math.exp(seconds / self.horizon_s)
        return -math.expm1(-seconds / self.horizon_s) * self.horizon_s * self.scale

    def overflow(self) -> float | None:
        """Return the factor by which all weights are to be scaled now, None: not yet."""
        if self.scale < _SCALE_MAX:
            return None
        factor, self.scale = 1.0 / self.scale, 1.0
        return factor


class Stream:
    """One quantity over one horizon.

    :ivar weight: of all observations, in the horizon's scale
    :ivar mean: None: nothing was observed
    """

    __slots__ = ('weight', 'mean', '_squares', '_bins')

    def __init__(
        self,
        weight: float = 0.0,
        mean: float | None = None,
        variance: float = 0.0,
        bins: dict[int, float] | None = None,
    ) -> None:
        self.weight, self.mean, self._squares = weight, mean, variance * weight
        self._bins = {} if bins is None else bins

    def add(self, value: float, weight: float, index: int) -> None:
        """Add an observation.

        :param index: of the value's bin, as :func:`bin_of` says
        """
        if self.mean is None:
            self.mean = value
        self.weight += weight
        step = value - self.mean
        self.mean += step * weight / self.weight
        self._squares += weight * step * (value - self.mean)
        self._bins[index] = self._bins.get(index, 0.0) + weight

    @property
    def variance(self) -> float | None:
        """Return the variance of the observations by weight, None: there are none."""
        return max(0.0, self._squares) / self.weight if self.weight else None

    def quantile(self, share: float, unit: float) -> float | None:
        """Return the value that this share of the time does not exceed; None: unknown.

        It is at most :data:`RELATIVE_ERROR` of it off, or the unit where that is more; beyond
        the last bin's end it is that end.

        :param share: 0.95 for the 95th percentile
        :param unit: as given to :func:`bin_of`
        """
        if not self._bins:
            return None
        left = share * math.fsum(self._bins.values()) * (1 - 1e-12)
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left <= 0:
                break
        return _middle(index) * unit

    def rescale(self, factor: float) -> None:
        """Multiply all weights; what has hardly any is forgotten."""
        self.weight *= factor
        if not self.weight:  # it was observed so long ago that no float is small enough
            self.mean, self._squares, self._bins = None, 0.0, {}
            return
        self._squares *= factor
        self._bins = {
            index: weight * factor
            for index, weight in self._bins.items()
            if weight * factor > _MIN_SHARE * self.weight
        }

    def bins(self) -> list[tuple[int, float]]:
        """Return (bin, share of the weight), by bin, without those that have hardly any."""
        return [
            (index, weight / self.weight)
            for index, weight in sorted(self._bins.items())
            if weight > _MIN_SHARE * self.weight
        ]


def bin_of(value: float, unit: float) -> int:
    """Return the bin of a value that is not negative: 0 up to the unit, then geometrically."""
    if value <= unit:
        return 0
    return min(BINS - 1, math.ceil(math.log(value / unit) / _LOG_GROWTH - 1e-9))


def _middle(index: int) -> float:
    """Return the value of a bin that is nowhere further off than the relative error."""
    return 2 * _GROWTH**index / (_GROWTH + 1) if index else 0.0
