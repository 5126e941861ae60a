# SPDX-License-Identifier: Apache-2.0
"""Take samples at intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar('_T')


def sample_every(
    take: Callable[[], _T],
    interval_s: float,
    wait: Callable[[float], None],
    clock: Callable[[], float],
) -> Iterator[_T]:
    """Yield a sample at the end of each interval.

    The time that sampling takes does not shift the schedule, except that a sample that took longer
    than an interval is followed by a whole interval.

    :param take: returns a sample of the time since the previous call
    :param wait: waits for the given number of seconds
    :param clock: returns the time of a monotonic clock [s]
    """
    take()  # the first sample has no rates
    due_s = clock() + interval_s
    while True:
        wait(max(0.0, due_s - clock()))
        yield take()
        due_s += interval_s
        if due_s <= clock():
            due_s = clock() + interval_s
