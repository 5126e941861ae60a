# SPDX-License-Identifier: Apache-2.0
"""Separate the time that threads waited for a CPU from the time that a quota held them back.

The kernel's ``run_delay`` grows while a thread is throttled: one with a quota of 0.05 cores that
wants a whole one runs 0.05 and "waits" 0.95, on an idle host. Pure; times in ns.
"""

from __future__ import annotations

from nova_numa_pmc.record import Record


class Quota(Record):
    """A limit on the CPU time of some of a guest's threads over one interval.

    :param cores: quota ÷ period
    :param tids: the threads that share it; None: all of the guest's
    :param throttled_ns: how long the kernel held them back; None: not reported
    """

    cores: float
    tids: frozenset[int] | None = None
    throttled_ns: int | None = None


def waited_ns(
    used: dict[int, tuple[int, int]], quotas: tuple[Quota, ...], elapsed_ns: int
) -> dict[int, float]:
    """Return {thread: ns} that threads waited for a CPU which they were allowed to use.

    Of a thread with a quota q of its own that is max(0, min(delay − throttled, q·Δt − run)).
    Threads that share a quota share its throttling evenly (the kernel counts it per group, and
    once for each CPU), and together wait for no more than the quota had left. That bound is the
    one that matters, as Linux 6.1 also counts throttling while no thread is queued.

    :param used: {thread: (run, run_delay)} of the interval
    :param quotas: innermost group first
    """
    held = dict.fromkeys(used, 0.0)
    members = []
    for quota in quotas:
        mine = [tid for tid in used if quota.tids is None or tid in quota.tids]
        members.append(mine)
        active = [tid for tid in mine if any(used[tid])]
        for tid in active:
            held[tid] = max(held[tid], (quota.throttled_ns or 0) / len(active))
    waits = {tid: max(0.0, delay - held[tid]) for tid, (_, delay) in used.items()}
    for quota, mine in zip(quotas, members):
        left = max(0.0, quota.cores * elapsed_ns - sum(used[tid][0] for tid in mine))
        total = sum(waits[tid] for tid in mine)
        if total > left:
            for tid in mine:
                waits[tid] *= left / total
    return waits
