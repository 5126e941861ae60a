# SPDX-License-Identifier: Apache-2.0
"""A thread waits for a CPU only as long as its quota would have let it run."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.core.cpu_wait import Quota, waited_ns

SECOND = 10**9
TIMES = st.integers(0, 5 * SECOND)
QUOTAS = st.lists(
    st.builds(
        Quota,
        st.floats(0.01, 8.0),
        st.none() | st.frozensets(st.integers(1, 4)),
        st.none() | TIMES,
    ),
    max_size=3,
).map(tuple)


class WaitedTest(unittest.TestCase):
    def test_a_thread_waited_for_what_its_quota_would_have_left(self):
        """Δ 5 s, 0.05 cores: (run, delay, throttled) → what the thread could also have run."""
        for run, delay, throttled, waited in (
            (0.25, 4.75, 4.65, 0.0),  # the quota is used up, so there is nothing to wait for
            (0.25, 4.75, None, 0.0),  # likewise if the kernel does not report throttling
            (0.10, 4.90, 4.80, 0.1),  # it got 0.1 of 0.25 s, and was throttled most of the time
            (0.10, 4.90, 4.95, 0.0),  # 6.1 also counts throttling while no thread is queued
            (0.10, 0.05, 0.0, 0.05),  # never throttled: all of its delay was waiting
            (0.26, 4.0, 0.0, 0.0),
        ):  # the quota of one period more than the window's share
            with self.subTest(run=run, throttled=throttled):
                quota = Quota(
                    0.05, frozenset((1,)), None if throttled is None else int(throttled * SECOND)
                )
                waits_ns = waited_ns(
                    {1: (int(run * SECOND), int(delay * SECOND))}, (quota,), 5 * SECOND
                )
                self.assertAlmostEqual(waited, waits_ns[1] / SECOND)

    def test_throttling_is_taken_off_by_thread_and_not_off_the_sum(self):
        # The second's throttling exceeds its waiting; the excess must not reduce the first one's.
        quotas = (Quota(1.0, frozenset((1,)), 0), Quota(0.1, frozenset((2,)), 3 * SECOND))
        waits_ns = waited_ns(
            {1: (SECOND, 2 * SECOND), 2: (SECOND // 2, SECOND)}, quotas, 5 * SECOND
        )
        self.assertEqual({1: 2.0 * SECOND, 2: 0.0}, waits_ns)

    @given(st.dictionaries(st.integers(1, 5), st.tuples(TIMES, TIMES)), QUOTAS)
    def test_waiting_is_never_above_the_kernels_nor_what_a_quota_leaves(self, used, quotas):
        waits_ns = waited_ns(used, quotas, 5 * SECOND)
        self.assertEqual(used.keys(), waits_ns.keys())
        for tid, waited in waits_ns.items():
            self.assertTrue(0 <= waited <= used[tid][1])
        for quota in quotas:
            mine = [tid for tid in used if quota.tids is None or tid in quota.tids]
            left = max(0.0, quota.cores * 5 * SECOND - sum(used[tid][0] for tid in mine))
            self.assertLessEqual(sum(waits_ns[tid] for tid in mine), left + 1)

    @given(st.dictionaries(st.integers(1, 5), st.tuples(TIMES, TIMES)))
    def test_waiting_without_quotas_is_what_the_kernel_says(self, used):
        self.assertEqual(
            {tid: wait for tid, (_, wait) in used.items()}, waited_ns(used, (), 5 * SECOND)
        )
