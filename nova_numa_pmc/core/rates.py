# SPDX-License-Identifier: Apache-2.0
"""Roles of counters, and the increases and rates between two of their readings.

A role is what an event counts, whatever the CPU model calls it.

``None`` means unknown: the increase of a counter that did not run, went backwards or was reopened
is unknown, not 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.missing import all_known
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What an event counts. Events with the same role and scope are added up.
LOCAL_DRAM, REMOTE_DRAM = 'local_dram', 'remote_dram'
CYCLES, INSTRUCTIONS = 'cycles', 'instructions'
STALLED_CYCLES = 'stalled_cycles'
MEM_READ, MEM_WRITE, MEM_TRAFFIC = 'mem_read', 'mem_write', 'mem_traffic'
LINK_TX = 'link_tx'
# Clocks of memory controllers and links, in bytes that could have been carried.
MEM_MAX, LINK_MAX = 'mem_max', 'link_max'
IO_HIT, IO_MISS = 'io_hit', 'io_miss'

#: Roles counted in a core: per CPU, per thread or per control group.
CORE_ROLES = (CYCLES, INSTRUCTIONS, LOCAL_DRAM, REMOTE_DRAM, STALLED_CYCLES)
#: The role counted for guests only, in an event group of its own, which the kernel multiplexes
#: with the other groups if the hardware has too few counters.
GUEST_ROLE = STALLED_CYCLES
#: Roles counted in the uncore of a package, for everything that runs on it. ``mem_traffic`` is
#: reads and writes together, for hardware that does not distinguish them.
UNCORE_ROLES = (MEM_READ, MEM_WRITE, MEM_TRAFFIC, MEM_MAX, LINK_TX, LINK_MAX, IO_HIT, IO_MISS)
#: Those of them whose counts are amounts of memory traffic, those of a link, and all amounts.
MEMORY_ROLES = (MEM_READ, MEM_WRITE, MEM_TRAFFIC)
LINK_ROLES = (LINK_TX, LINK_MAX)
DATA_ROLES = (*MEMORY_ROLES, MEM_MAX, *LINK_ROLES)
ROLES = CORE_ROLES + UNCORE_ROLES

_WRAP, _HALF = 1 << 64, 1 << 63
#: The CPI of a CPU that is busy for less than this share of the time says nothing: what little
#: ran was mostly kernel housekeeping (eBay's KVM tuning deck, 2013).
BUSY_MIN_RATIO = 0.05


class CounterReading(Record):
    """Cumulative, unscaled reading of a counter.

    :param value: events since the counter was opened, modulo 2**64
    :param enabled_ns: time for which it was enabled: wall time for a CPU, run time for a thread
        or control group
    :param running_ns: time for which it counted, which is less if the kernel had to multiplex
        counters
    """

    value: int
    enabled_ns: int
    running_ns: int


class CounterDelta(Record):
    """Increase of a counter between two readings.

    :param value: events, scaled to the whole time
    :param share: share of the enabled time for which it counted; 1.0 if nothing was scaled
    """

    value: float
    share: float


def growth(
    previous: CounterReading | None, current: CounterReading | None
) -> CounterReading | None:
    """Return what a counter and its times have grown by; None if it is unknown.

    A counter wraps at 2**64; an increase of more than half of that means that it went backwards.
    """
    if previous is None or current is None:
        return None
    # Unpacked, because attributes take longer and a sample has thousands of counters.
    value_before, enabled_before, running_before = previous
    value, enabled, running = current
    enabled -= enabled_before
    running -= running_before
    value = (value - value_before) % _WRAP
    if not 0 <= running <= enabled or value >= _HALF or (value and not enabled):
        return None
    return CounterReading._make((value, enabled, running))


def scaled(value: float, enabled_ns: float, running_ns: float) -> CounterDelta | None:
    """Return a count scaled to the whole time; None if it ran but was never counted.

    The value is scaled by enabled ÷ running time, as perf does (perf_event_open(2),
    *PERF_FORMAT_TOTAL_TIME_RUNNING*). If it was not enabled, it did not run, and counted nothing.
    """
    if not enabled_ns:
        return CounterDelta(0.0, 1.0)
    if not running_ns:
        return None
    return CounterDelta(value * enabled_ns / running_ns, running_ns / enabled_ns)


def add(deltas: Iterable[CounterDelta | None]) -> CounterDelta | None:
    """Return the sum of deltas with the smallest of their shares.

    :returns: None if a delta is unknown or none is given
    """
    known_deltas = all_known(list(deltas))
    if not known_deltas:
        return None
    return CounterDelta(
        sum(delta.value for delta in known_deltas), min(delta.share for delta in known_deltas)
    )


def subtract(delta: CounterDelta | None, other: CounterDelta | None) -> CounterDelta | None:
    """Return ``delta − other``, but at least 0; None if either is unknown.

    A difference below 0 arises from counters that ran at different times.
    """
    if delta is None or other is None:
        return None
    return CounterDelta(max(0.0, delta.value - other.value), min(delta.share, other.share))


def per_sec(delta: CounterDelta | None, elapsed_ns: float) -> float | None:
    """Return events per second; None if they are unknown or no time has passed."""
    if delta is None or elapsed_ns <= 0:
        return None
    return delta.value * 1e9 / elapsed_ns


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``; None if either is unknown or the whole is 0."""
    if part is None or not whole:
        return None
    return part / whole


def shares(amounts: Mapping[int, float] | Iterable[tuple[int, float]]) -> dict[int, float]:
    """Return {key: share of its amount in the sum}; empty if all amounts are 0."""
    amount_by_key = dict(amounts)
    total = sum(amount_by_key.values())
    return {key: amount / total for key, amount in amount_by_key.items()} if total > 0 else {}


def remote_ratio(local: float | None, remote: float | None) -> float | None:
    """Return the remote share of DRAM accesses, 0 to 1; None if unknown or without accesses."""
    if local is None or remote is None:
        return None
    return ratio(remote, local + remote)


def cycles_per_instruction(
    cycles: float | None, instructions: float | None, busy_ratio: float | None
) -> float | None:
    """Return the cycles per instruction (CPI); None if unknown.

    :param busy_ratio: share of the time for which the CPUs were busy; if this is unknown or below
        :data:`BUSY_MIN_RATIO`, the CPI is unknown
    """
    if busy_ratio is None or busy_ratio < BUSY_MIN_RATIO:
        return None
    return ratio(cycles, instructions)


def stalled_ratio(stalled: float | None, cycles: float | None) -> float | None:
    """Return the stalled share of all cycles, 0 to 1; None if unknown.

    The counters are multiplexed, so that the quotient of their counts can exceed 1.
    """
    stalled_share = ratio(stalled, cycles)
    return None if stalled_share is None else min(1.0, stalled_share)


def accesses_per_1000_instructions(
    local: float | None, remote: float | None, instructions: float | None
) -> float | None:
    """Return DRAM accesses per 1,000 instructions; None if unknown."""
    if local is None or remote is None:
        return None
    per_instruction = ratio(local + remote, instructions)
    return None if per_instruction is None else 1000 * per_instruction
