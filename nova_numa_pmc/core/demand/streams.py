# SPDX-License-Identifier: Apache-2.0
"""Mean, variance and quantiles of a quantity over a horizon, in bounded memory.

An observation of age t weighs exp(-t / horizon). Instead of reducing the old weights, the
new ones are increased, so that adding an observation takes constant time: G. Cormode,
V. Shkapenyuk, D. Srivastava, B. Xu, "Forward decay", ICDE 2009.

Mean and variance: D. H. D. West, "Updating mean and variance estimates", CACM 22(9), 1979.
Quantiles: bins that grow geometrically, as in C. Masson, J. E. Rim, H. K. Lee, "DDSketch",
VLDB 2019, which bounds their relative error.
"""

from __future__ import annotations

import math

#: Relative error of a quantile, above the unit of its series.
RELATIVE_ERROR = 0.1
#: Bins of one series; with the unit 0.01 the last one ends at 3,000.
BIN_COUNT = 64
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
#: Weights are scaled back before they come near the largest float.
_SCALE_MAX = 1e100
#: Bins with a smaller part of a stream's weight are forgotten when it is scaled or written.
_WEIGHT_MIN_RATIO = 1e-4


class Horizon:
    """The weight of a new observation relative to earlier ones of the same horizon.

    :ivar horizon_s: after this time an observation weighs 1/e of a new one [s]
    :ivar scale: weight of one second of new observation
    """

    __slots__ = ('horizon_s', 'scale')

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s, self.scale = horizon_s, 1.0

    def advance(self, seconds: float) -> float:
        """Advance the time; return the weight of an observation over that time.

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

        :param index: the bin of the value, from :func:`bin_of`
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

        Its error is at most :data:`RELATIVE_ERROR` of it, or the unit if that is more; a value
        beyond the last bin is returned as the end of that bin.

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
        """Multiply all weights; forget bins that have hardly any left."""
        self.weight *= factor
        if not self.weight:  # it was observed so long ago that its weight has underflowed
            self.mean, self._squares, self._bins = None, 0.0, {}
            return
        self._squares *= factor
        self._bins = {
            index: weight * factor
            for index, weight in self._bins.items()
            if weight * factor > _WEIGHT_MIN_RATIO * self.weight
        }

    def bins(self) -> list[tuple[int, float]]:
        """Return (bin, share of the weight), by bin, without those that have hardly any."""
        return [
            (index, weight / self.weight)
            for index, weight in sorted(self._bins.items())
            if weight > _WEIGHT_MIN_RATIO * self.weight
        ]


def bin_of(value: float, unit: float) -> int:
    """Return the bin of a value that is not negative: 0 up to the unit, then geometrically."""
    if value <= unit:
        return 0
    return min(BIN_COUNT - 1, math.ceil(math.log(value / unit) / _LOG_GROWTH - 1e-9))


def _middle(index: int) -> float:
    """Return a value that is within the relative error of every value in a bin."""
    return 2 * _GROWTH**index / (_GROWTH + 1) if index else 0.0
