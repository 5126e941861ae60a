# SPDX-License-Identifier: Apache-2.0
"""Record a run's time line: its phases with their times, and its events."""

import contextlib
import time
import traceback

from tests.stack.service import StackError, print_step


class TimeLine:
    """The phases of a run and its events, printed as they occur."""

    def __init__(self):
        """Start the clock."""
        self.began, self.began_s = time.monotonic(), time.time()
        self.phases, self._events = [], []

    def at_s(self):
        """Return the seconds since the start."""
        return round(time.monotonic() - self.began, 1)

    def add_event(self, message, source='', **detail):
        """Add an event that happens now, and print it.

        :param source: the host or service, or '' for the scenario itself
        """
        at_s = self.at_s()
        self._events.append({'at_s': at_s, 'source': source, 'message': message, **detail})
        print_step(
            f'{at_s:6.0f} s  {source + ": " if source else ""}{message}'
            + (f'  {detail}' if detail else '')
        )

    def add_past_event(self, taken_s, message, source):
        """Add an event of a journal, with its time [s since the epoch]."""
        self._events.append(
            {'at_s': round(taken_s - self.began_s, 1), 'source': source, 'message': message}
        )

    @property
    def events(self):
        """Return all events in their order."""
        return sorted(self._events, key=lambda event: event['at_s'])

    @contextlib.contextmanager
    def phase(self, name):
        """Record how long a phase took and whether it failed; yield its entry."""
        began, entry = time.monotonic(), {'name': name, 'passed': False}
        self.phases.append(entry)
        self.add_event(name)
        try:
            yield entry
            entry['passed'] = True
        except Exception as error:
            entry['error'] = f'{type(error).__name__}: {error}'[:2000]
            if not isinstance(error, StackError):
                entry['traceback'] = traceback.format_exc()
            self.add_event(f'{name}: FAILED', why=entry['error'])
            raise
        finally:
            entry['seconds'] = round(time.monotonic() - began, 1)
