# SPDX-License-Identifier: Apache-2.0
"""The time line of a run: phases with their times, and events."""

import contextlib
import time
import traceback

from tests.stack.service import StackError, say


class TimeLine:
    """The phases of a run and its events, printed as they occur."""

    def __init__(self):
        """Start the clock."""
        self.began, self.began_s = time.monotonic(), time.time()
        self.phases, self._events = [], []

    def at_s(self):
        """Return the seconds since the start."""
        return round(time.monotonic() - self.began, 1)

    def tell(self, what, who='', **detail):
        """Add a current event.

        :param who: the host or service, or '' for the scenario itself
        """
        at_s = self.at_s()
        self._events.append({'at_s': at_s, 'who': who, 'what': what, **detail})
        say(
            f'{at_s:6.0f} s  {who + ": " if who else ""}{what}' + (f'  {detail}' if detail else '')
        )

    def add(self, taken_s, what, who):
        """Add an event with a clock time [s since the epoch], from a journal."""
        self._events.append({'at_s': round(taken_s - self.began_s, 1), 'who': who, 'what': what})

    @property
    def events(self):
        """Return all events in their order."""
        return sorted(self._events, key=lambda event: event['at_s'])

    @contextlib.contextmanager
    def phase(self, name):
        """Record how long a phase took and whether it failed; yield its entry."""
        began, entry = time.monotonic(), {'name': name, 'passed': False}
        self.phases.append(entry)
        self.tell(name)
        try:
            yield entry
            entry['passed'] = True
        except Exception as error:
            entry['error'] = f'{type(error).__name__}: {error}'[:2000]
            if not isinstance(error, StackError):
                entry['traceback'] = traceback.format_exc()
            self.tell(f'{name}: FAILED', why=entry['error'])
            raise
        finally:
            entry['seconds'] = round(time.monotonic() - began, 1)
