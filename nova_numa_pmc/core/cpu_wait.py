# SPDX-License-Identifier: Apache-2.0
"""Separate the time for which threads waited for a CPU from that for which a quota throttled them.

The kernel's ``run_delay`` also grows while a thread is throttled: on an idle host, a thread that
wants a whole core but has a quota of 0.05 cores runs for 0.05 and "waits" for 0.95.
"""

from __future__ import annotations

from nova_numa_pmc.record import Record


class Quota(Record):
    """A limit on the CPU time of some of a guest's threads over one interval.

    :param cores: quota ÷ period
    :param tids: ids of the threads that share the quota; None if all of the guest's threads do
    :param throttled_ns: time for which the kernel throttled them; None if it is not reported
    """

    cores: float
    tids: frozenset[int] | None = None
    throttled_ns: int | None = None


def waited_ns(
    used: dict[int, tuple[int, int]], quotas: tuple[Quota, ...], elapsed_ns: int
) -> dict[int, float]:
    """Return the time for which each thread waited for a CPU that its quotas allowed it to use.

    For a thread with a quota q of its own, this is max(0, min(delay − throttled, q·Δt − run)).
    Threads that share a quota are each assumed to have been throttled for an equal share of the
    time (the kernel counts it per group, and once for each CPU), and together wait for no longer
    than what was left of the quota. That bound is the one that matters, because Linux 6.1 counts
    throttling even while no thread is queued.

    :param used: {thread id: (run, run_delay)} of the interval [ns]
    :param quotas: the quotas of the innermost control group first
    :returns: {thread id: time [ns]}
    """
    throttled_ns = dict.fromkeys(used, 0.0)
    tids_by_quota = []
    for quota in quotas:
        quota_tids = [tid for tid in used if quota.tids is None or tid in quota.tids]
        tids_by_quota.append(quota_tids)
        active_tids = [tid for tid in quota_tids if any(used[tid])]
        for tid in active_tids:
            throttled_ns[tid] = max(
                throttled_ns[tid], (quota.throttled_ns or 0) / len(active_tids)
            )
    waits_ns = {tid: max(0.0, delay_ns - throttled_ns[tid]) for tid, (_, delay_ns) in used.items()}
    for quota, quota_tids in zip(quotas, tids_by_quota):
        left_ns = max(0.0, quota.cores * elapsed_ns - sum(used[tid][0] for tid in quota_tids))
        total_ns = sum(waits_ns[tid] for tid in quota_tids)
        if total_ns > left_ns:
            for tid in quota_tids:
                waits_ns[tid] *= left_ns / total_ns
    return waits_ns
