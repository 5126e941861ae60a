# SPDX-License-Identifier: Apache-2.0
"""Compute the mean, variance and quantiles of a quantity over a horizon, in bounded memory.

An observation of age t has the weight exp(-t / horizon). Instead of reducing the weights of old
observations, those of new ones are increased, so that adding an observation takes constant time:
G. Cormode, V. Shkapenyuk, D. Srivastava, B. Xu, "Forward decay", ICDE 2009.

Mean and variance: D. H. D. West, "Updating mean and variance estimates", CACM 22(9), 1979.
Quantiles: bins that grow geometrically, as in C. Masson, J. E. Rim, H. K. Lee, "DDSketch",
VLDB 2019, which bounds their relative error.
"""

from __future__ import annotations

import math

#: Relative error of a quantile that is above the unit of its series.
RELATIVE_ERROR = 0.1
#: Number of bins of a stream. With a unit of 0.01, the last bin ends at 3,000.
BIN_COUNT = 64
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
#: Weights are scaled down once the scale has reached this, well below the largest float.
_SCALE_MAX = 1e100
#: A bin with a smaller share of its stream's weight is dropped when the stream is scaled or
#: written.
_WEIGHT_MIN_RATIO = 1e-4


class Horizon:
    """The weight of a new observation relative to that of earlier ones over the same horizon.

    :ivar horizon_s: age at which the weight of an observation is 1/e of that of a new one [s]
    :ivar scale: weight of one second of a new observation
    """

    __slots__ = ('horizon_s', 'scale')

    def __init__(self, horizon_s: float) -> None:
        self.horizon_s, self.scale = horizon_s, 1.0

    def advance(self, elapsed_s: float) -> float:
        """Advance the time, and return the weight of an observation over the time that passed.

        It is the integral of the weights of all moments, so that the two parts of an interval
        together weigh as much as the whole.

        :param elapsed_s: time that passed, at most a hundred horizons
        """
        self.scale *= math.exp(elapsed_s / self.horizon_s)
        return -math.expm1(-elapsed_s / self.horizon_s) * self.horizon_s * self.scale

    def overflow(self) -> float | None:
        """Return the factor by which to scale all weights now; None if none is needed yet."""
        if self.scale < _SCALE_MAX:
            return None
        factor, self.scale = 1.0 / self.scale, 1.0
        return factor


class Stream:
    """Statistics of one quantity over one horizon.

    :ivar weight: total weight of the observations, in the horizon's scale
    :ivar mean: mean of the observations; None if there are none
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

        :param index: the bin of the value, as :func:`bin_of` returns it
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
        """Return the weighted variance of the observations; None if there are none."""
        return max(0.0, self._squares) / self.weight if self.weight else None

    def quantile(self, share: float, unit: float) -> float | None:
        """Return the value that is not exceeded for a share of the time; None if it is unknown.

        Its error is at most :data:`RELATIVE_ERROR` of the value, or the unit if that is more.
        Values above the last bin count as in that bin.

        :param share: the share, such as 0.95 for the 95th percentile
        :param unit: the unit that was given to :func:`bin_of`
        """
        if not self._bins:
            return None
        left_weight = share * math.fsum(self._bins.values()) * (1 - 1e-12)
        for index in sorted(self._bins):
            left_weight -= self._bins[index]
            if left_weight <= 0:
                break
        return _middle(index) * unit

    def rescale(self, factor: float) -> None:
        """Multiply all weights by a factor, and drop bins that have hardly any weight left."""
        self.weight *= factor
        if not self.weight:  # the last observation is so old that its weight has underflowed
            self.mean, self._squares, self._bins = None, 0.0, {}
            return
        self._squares *= factor
        self._bins = {
            index: weight * factor
            for index, weight in self._bins.items()
            if weight * factor > _WEIGHT_MIN_RATIO * self.weight
        }

    def bins(self) -> list[tuple[int, float]]:
        """Return (bin, share of the weight) in order, without bins that have hardly any weight."""
        return [
            (index, weight / self.weight)
            for index, weight in sorted(self._bins.items())
            if weight > _WEIGHT_MIN_RATIO * self.weight
        ]


def bin_of(value: float, unit: float) -> int:
    """Return the index of the bin of a value that is not negative.

    The first bin ends at the unit; the others grow geometrically.
    """
    if value <= unit:
        return 0
    return min(BIN_COUNT - 1, math.ceil(math.log(value / unit) / _LOG_GROWTH - 1e-9))


def _middle(index: int) -> float:
    """Return the value that is within the relative error of every value in a bin, in units."""
    return 2 * _GROWTH**index / (_GROWTH + 1) if index else 0.0
