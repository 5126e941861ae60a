# SPDX-License-Identifier: Apache-2.0
"""Count more events than there are counters, in sets that take turns.

The kernel also rotates groups, every few milliseconds; sets decide *which* events are counted
together, so that a ratio (CPI, remote to local) is of the same time, and switch as rarely as the
caller steps. As in the deck of eBay's KVM tuning (2013) and CERN openlab's talks on perfmon event
sets.
"""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

from nova_numa_pmc.core.rates import CounterReading
from nova_numa_pmc.host.perf import perf_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nova_numa_pmc.host.perf.events import Event

#: include/uapi/linux/perf_event.h
_IOC_ENABLE, _IOC_DISABLE, _IOC_FLAG_GROUP = 0x2400, 0x2401, 1


def plan_sets(
    events: Iterable[Event], counters: int, in_each: Sequence[Event] = ()
) -> tuple[tuple[Event, ...], ...]:
    """Distribute events among sets of at most ``counters``, each with ``in_each`` in it.

    :param events: in order; neighbours stay together as far as they fit, so give
        pairs to be compared (local and remote) side by side
    :param counters: how many the hardware has, at least one more than ``in_each``
    """
    rest = [event for event in events if event not in in_each]
    room = counters - len(in_each)
    if room < 1 and rest:
        raise ValueError(
            '%d counters leave no room beside %d events in each set' % (counters, len(in_each))
        )
    sets = (
        [tuple(in_each) + tuple(rest[first : first + room]) for first in range(0, len(rest), room)]
        if rest
        else []
    )
    return tuple(sets) or ((tuple(in_each),) if in_each else ())


def _enable(group: perf_event.EventGroup) -> None:
    """Enable a group."""
    fcntl.ioctl(group.fds[0], _IOC_ENABLE, _IOC_FLAG_GROUP)


def disable(group: perf_event.EventGroup) -> None:
    """Stop a group; its counts can still be read."""
    fcntl.ioctl(group.fds[0], _IOC_DISABLE, _IOC_FLAG_GROUP)


class Rotation:
    """Sets of events on one target, of which one counts at a time."""

    def __init__(self, sets: Iterable[Sequence[Event]], target: perf_event.Target) -> None:
        """Open all sets without counting; :meth:`step` starts the first one.

        :raises CounterError: a set that cannot be opened; nothing stays open
        """
        self._groups: list[perf_event.EventGroup] = []
        self._current = -1
        try:
            for events in sets:
                self._groups.append(perf_event.EventGroup(events, target, disabled=True))
        except Exception:
            self.close()
            raise

    def step(self) -> None:
        """Stop the current set and start the next."""
        if self._current >= 0:
            disable(self._groups[self._current])
        self._current = (self._current + 1) % len(self._groups)
        _enable(self._groups[self._current])

    def stop(self) -> None:
        """Stop counting."""
        if self._current >= 0:
            disable(self._groups[self._current])
            self._current = -1

    def read(self, window_ns: int) -> dict[Event, CounterReading | None]:
        """Return event → count (None if unknown) over a window in which the sets took turns.

        :param window_ns: time since the first step: every event should have counted for all
            of it, so that ``rates.difference`` scales by window over time counted
        """
        totals: dict[Event, CounterReading | None] = {}
        for group in self._groups:
            for event, count in zip(group.events, group.read()):
                if count is None:
                    totals[event] = None
                else:
                    so_far = totals.get(event, CounterReading(0, 0, 0))
                    if so_far is not None:
                        totals[event] = CounterReading(
                            so_far.value + count.value,
                            window_ns,
                            so_far.running_ns + count.running_ns,
                        )
        return totals

    def close(self) -> None:
        """Close all sets."""
        for group in self._groups:
            group.close()
        self._groups = []
        self._current = -1
