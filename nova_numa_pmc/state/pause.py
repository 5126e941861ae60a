# SPDX-License-Identifier: Apache-2.0
"""Keep the agent from moving guests: a file in the state directory, until a reboot at most.

Its text: seconds since the epoch, a space, and why. While there is such a file, whatever is in
it, the agent is paused.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging

FILE = 'paused'
_SIZE_MAX_BYTES = 4096
REASON_MAX = 200


class Paused(Record):
    """Since when the agent is paused (CLOCK_REALTIME [s], None: unknown), and why."""

    since_s: float | None
    reason: str

    def __str__(self) -> str:
        return 'paused' + (': ' + self.reason if self.reason else '')


def read(directory: str) -> Paused | None:
    """Return since when and why the agent is paused, None: it is not.

    :param directory: the state directory's path
    """
    try:
        data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    except StateError as error:
        return Paused(None, str(error))
    return None if data is None else _parse(data.decode('utf-8', 'replace'))


def _parse(text: str) -> Paused:
    since, _, reason = text.rstrip('\n').partition(' ')
    return Paused(
        int(since) if is_number(since) else None,
        ''.join(char if char.isprintable() else '?' for char in reason[:REASON_MAX]),
    )


def begin(directory: str, reason: str = '', now_s: float | None = None) -> Paused:
    """Pause the agent, or change the reason of a pause.

    :returns: the pause as written; another process may have ended it meanwhile
    :raises StateError: the state directory cannot be trusted or written
    """
    text = '%d %s\n' % (time.time() if now_s is None else now_s, reason)
    state_files.write(directory, FILE, text.encode())
    return _parse(text)


def end(directory: str) -> bool:
    """Let the agent go on.

    :returns: whether it was paused
    :raises StateError: the state directory cannot be trusted or the file not be removed
    """
    try:
        fd = state_files.open_directory(directory, create=False)
    except FileNotFoundError:
        return False
    try:
        os.unlink(FILE, dir_fd=fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(
            '%s: %s: remove it' % (os.path.join(directory, FILE), error.strerror)
        ) from None
    finally:
        os.close(fd)
    return True


class PauseWatch:
    """Looks for the file in each tick; logs when it comes and when it goes."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._known: Paused | None = None

    def look(self, directory: str) -> Paused | None:
        """Read the file; None: the agent is not paused."""
        paused = read(directory)
        if paused and not self._known:
            self._log.info('%s; guests are held, and none is moved', paused)
        elif self._known and not paused:
            self._log.info('resumed: guests may be moved again')
        self._known = paused
        return paused
