# SPDX-License-Identifier: Apache-2.0
"""Compare streams with the exact weighted figures of the same series."""

import math
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.demand import streams as subject

UNIT = 0.01
VALUE = st.floats(0, 2000, allow_subnormal=False)
SERIES = st.lists(st.tuples(VALUE, st.floats(0.01, 600)), min_size=1, max_size=60)


def feed(series, horizon_s=900.0):
    """Return (stream, its horizon) after a series of (value, seconds)."""
    horizon, stream = subject.Horizon(horizon_s), subject.Stream()
    for value, seconds in series:
        stream.add(value, horizon.advance(seconds), subject.bin_of(value, UNIT))
        factor = horizon.overflow()
        if factor is not None:
            stream.rescale(factor)
    return stream, horizon


def weights(series, horizon_s=900.0):
    """Return the weight of each observation according to the definition."""
    ages, age = [], 0.0
    for _, seconds in reversed(series):
        ages.append(
            horizon_s * (math.exp(-age / horizon_s) - math.exp(-(age + seconds) / horizon_s))
        )
        age += seconds
    return ages[::-1]


def exact_quantile(series, share):
    pairs = sorted(zip((value for value, _ in series), weights(series)))
    left = share * math.fsum(weight for _, weight in pairs) * (1 - 1e-12)
    for value, weight in pairs:
        left -= weight
        if left <= 0:
            return value
    return pairs[-1][0]


class PropertyTest(unittest.TestCase):
    @settings(max_examples=200, deadline=None)
    @given(SERIES)
    def test_mean_and_variance_are_exact(self, series):
        stream, _ = feed(series)
        known, values = weights(series), [value for value, _ in series]
        total = math.fsum(known)
        mean = math.fsum(map(float.__mul__, known, values)) / total
        variance = (
            math.fsum(weight * (value - mean) ** 2 for weight, value in zip(known, values)) / total
        )
        self.assertAlmostEqual(mean, stream.mean, delta=1e-6 * (1 + mean))
        self.assertAlmostEqual(variance, stream.variance, delta=1e-6 * (1 + max(values) ** 2))

    @settings(max_examples=200, deadline=None)
    @given(SERIES, st.sampled_from((0.05, 0.5, 0.95, 1.0)))
    def test_a_quantile_is_within_the_stated_error(self, series, share):
        stream, _ = feed(series)
        # If two values share the boundary, rounding may select either.
        near = [
            exact_quantile(series, min(1.0, max(0.0, share + off))) for off in (-1e-9, 0.0, 1e-9)
        ]
        quantile = stream.quantile(share, UNIT)
        self.assertTrue(
            any(
                abs(quantile - exact) <= max(UNIT, subject.RELATIVE_ERROR * exact) * (1 + 1e-6)
                for exact in near
            ),
            (quantile, near),
        )

    @settings(deadline=None)
    @given(SERIES, st.integers(2, 20))
    def test_the_cut_of_intervals_changes_nothing_in_a_stream(self, series, parts):
        cut = [(value, seconds / parts) for value, seconds in series for _ in range(parts)]
        (whole, _), (pieces, _) = feed(series), feed(cut)
        self.assertAlmostEqual(whole.mean, pieces.mean, delta=1e-6 * (1 + whole.mean))

    def test_years_of_observations_do_not_overflow(self):
        stream, horizon = feed([(1.0, 600.0), (3.0, 600.0)] * 20000, horizon_s=30.0)
        self.assertLess(horizon.scale, 1e200)
        self.assertAlmostEqual(3.0, stream.mean)
        self.assertAlmostEqual(30.0, stream.weight / horizon.scale)
        self.assertAlmostEqual(3.0, stream.quantile(0.95, UNIT), delta=0.3)


class StreamTest(unittest.TestCase):
    def test_a_stream_without_observations_is_unknown(self):
        stream = subject.Stream()
        self.assertEqual(
            (None, None, None), (stream.mean, stream.variance, stream.quantile(0.95, UNIT))
        )

    def test_an_observation_a_horizon_ago_weighs_a_third(self):
        stream, _ = feed([(1.0, 9e3)] * 10 + [(0.0, 900.0)])
        self.assertAlmostEqual(1 / math.e, stream.mean)

    def test_a_value_beyond_the_last_bin_has_a_bounded_quantile(self):
        stream, _ = feed([(1e9, 5.0)])
        self.assertLess(stream.quantile(0.95, UNIT), 1e4)
