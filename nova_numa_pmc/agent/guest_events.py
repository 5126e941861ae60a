# SPDX-License-Identifier: Apache-2.0
"""Collect libvirt's events between ticks; without libvirt, the next tick finds the changes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.host import libvirt_events

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

#: Events that follow the first one within this time are handled together with it [s].
COALESCE_S = 0.2
#: Prefix of :attr:`GuestEvents.source` if libvirt reports no events.
BY_STATUS_FILES = 'status files'


class GuestEvents:
    """Collects the names of guests that have changed, until they are handled.

    :param listener: a started receiver of libvirt's events; None: there is none
    """

    def __init__(
        self,
        root: str,
        log: logging.Logger,
        listener: libvirt_events.Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._clock = clock
        self._listener = listener
        self.guests = libvirt_events.LiveGuests(root, listener)
        self._pending: set[str] = set()  # names of guests
        self._since_s = 0.0  # when the first of them was received
        self._logged_source = ''

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when an event arrives."""
        return [self._listener.fileno()] if self._listener else []

    @property
    def source(self) -> str:
        """Return the source of changes: 'libvirt', or 'status files', with the reason if known."""
        if self._listener is None:
            return BY_STATUS_FILES
        problem = self._listener.problem
        return '%s: %s' % (BY_STATUS_FILES, problem) if problem else 'libvirt'

    def collect(self) -> None:
        """Collect the pending events without waiting."""
        if self._listener is None:
            return
        events = self._listener.pop_events()
        for event in events:
            self.guests.update(event)
        if events and not self._pending:
            self._since_s = self._clock()
        self._pending.update(event.name for event in events)
        source = self.source
        if source != self._logged_source and libvirt_events.CONNECTING not in source:
            self._logged_source = source
            self._log.info('the agent learns of changes to guests from %s', source)

    def due_in_s(self) -> float | None:
        """Return the seconds until the collected events are due; None: there are none."""
        if not self._pending:
            return None
        return max(0.0, self._since_s + COALESCE_S - self._clock())

    def pop_names(self) -> set[str]:
        """Return the names of the guests with events, and clear them."""
        names, self._pending = self._pending, set()
        return names

    def close(self) -> None:
        """Let the listener end by itself."""
        if self._listener is not None:
            self._listener.close()
