# SPDX-License-Identifier: Apache-2.0
"""Turn two readings of a counter and the time between them into increases and rates.

Pure. ``None`` is unknown: the increase of a counter that did not run, went backwards or was
reopened is unknown, not 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


_WRAP, _HALF = 1 << 64, 1 << 63
#: Below this share of a CPU its CPI says nothing: what little ran was mostly
#: kernel housekeeping (eBay's KVM tuning deck, 2013).
BUSY_MIN_RATIO = 0.05


class CounterReading(Record):
    """A counter as read: cumulative, unscaled.

    :param value: events since it was opened, modulo 2**64
    :param enabled_ns: how long it was enabled: wall time for a CPU, run time for a thread or
        control group
    :param running_ns: how long it counted; less if the kernel had to multiplex counters
    """

    value: int
    enabled_ns: int
    running_ns: int


class Delta(Record):
    """Count of a counter between two readings.

    :param value: events (float), scaled to the whole time
    :param share: share of the enabled time for which it counted; 1.0: nothing was scaled
    """

    value: float
    share: float


def difference(
    previous: CounterReading | None, current: CounterReading | None, idle_is_zero: bool = False
) -> Delta | None:
    """Return a counter's increase between two readings, None: unknown.

    The value is scaled by enabled/running as perf does (perf_event_open(2),
    *PERF_FORMAT_TOTAL_TIME_RUNNING*). A counter wraps at 2**64; a step of more
    than half of that is one that went backwards.

    :param idle_is_zero: no enabled time means that nothing ran (a thread, a
        control group), else that the counter is dead (a CPU went offline)
    """
    if previous is None or current is None:
        return None
    # By position: names take longer, and a sample has thousands of counters.
    value_before, enabled_before, running_before = previous
    value, enabled, running = current
    enabled -= enabled_before
    running -= running_before
    value -= value_before
    if value < 0:
        value += _WRAP
    if enabled < 0 or running < 0 or running > enabled or value >= _HALF:
        return None
    if enabled == 0:
        return Delta(0.0, 1.0) if idle_is_zero and value == 0 else None
    if running == 0:
        return None
    if running == enabled:
        return Delta(float(value), 1.0)
    return Delta(value * enabled / running, running / enabled)


def add(deltas: Iterable[Delta | None]) -> Delta | None:
    """Return the sum of deltas with the smallest share; None when any is unknown or none given."""
    known = []
    for delta in deltas:
        if delta is None:
            return None
        known.append(delta)
    if not known:
        return None
    return Delta(sum(delta.value for delta in known), min(delta.share for delta in known))


def subtract(delta: Delta | None, other: Delta | None) -> Delta | None:
    """Return ``delta − other``, at least 0; None when either is unknown.

    Two counters that ran at different times can differ by more than they
    should, but a negative count is impossible.
    """
    if delta is None or other is None:
        return None
    return Delta(max(0.0, delta.value - other.value), min(delta.share, other.share))


def per_sec(delta: Delta | None, elapsed_ns: float) -> float | None:
    """Return events per second; None: unknown or no time has passed."""
    if delta is None or elapsed_ns <= 0:
        return None
    return delta.value * 1e9 / elapsed_ns


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``; None when either is unknown or the whole is 0."""
    if part is None or not whole:
        return None
    return part / whole


def remote_ratio(local: float | None, remote: float | None) -> float | None:
    """Return remote DRAM accesses over all DRAM accesses, 0 to 1; None: unknown or no access."""
    if local is None or remote is None:
        return None
    return ratio(remote, local + remote)


def cycles_per_instruction(
    cycles: float | None, instructions: float | None, busy_ratio: float | None
) -> tuple[float | None, bool]:
    """Return (CPI, whether it can be relied on).

    :param busy_ratio: share of the time that its CPUs were busy; None: unknown.
        Below :data:`BUSY_MIN_RATIO` the CPI is given but not to be relied on.
    """
    cpi = ratio(cycles, instructions)
    return cpi, cpi is not None and busy_ratio is not None and busy_ratio >= BUSY_MIN_RATIO


def stalled_ratio(stalled: float | None, cycles: float | None) -> float | None:
    """Return stalled cycles over all cycles, 0 to 1; None: unknown.

    They were counted in turns, so the part can come out larger than the whole.
    """
    share = ratio(stalled, cycles)
    return None if share is None else min(1.0, share)


def memory_intensity(
    local: float | None, remote: float | None, instructions: float | None
) -> float | None:
    """Return DRAM accesses per 1,000 instructions; None: unknown."""
    if local is None or remote is None:
        return None
    share = ratio(local + remote, instructions)
    return None if share is None else 1000 * share
