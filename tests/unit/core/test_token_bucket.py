# SPDX-License-Identifier: Apache-2.0
"""Spending never exceeds the rate by more than a burst and the last amount."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core.token_bucket import TokenBucket


class TokenBucketTest(unittest.TestCase):
    def test_a_clock_that_goes_back_pays_nothing(self):
        bucket = TokenBucket(rate_per_sec=100, burst=0, now_s=10.0)
        bucket.spend(100, 10.0)
        self.assertEqual(1.0, bucket.wait_s(5.0))
        self.assertEqual(0.5, bucket.wait_s(5.5))

    @given(
        st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), max_size=40),
        st.integers(1, 500),
        st.integers(0, 500),
    )
    def test_the_rate_of_the_bucket_holds_over_any_time(self, events, rate, burst):
        bucket, now, spent = TokenBucket(rate, burst, 0.0), 0.0, []
        for passed, amount in events:
            now += passed
            if not bucket.wait_s(now):
                bucket.spend(amount, now)
                spent.append((now, amount))
        for i, (began, _) in enumerate(spent):
            total = 0
            for ended, amount in spent[i:]:
                # Only the last amount may exceed what is available.
                self.assertLessEqual(total, burst + rate * (ended - began) + 1e-3)
                total += amount
