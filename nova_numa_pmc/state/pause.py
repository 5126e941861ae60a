# SPDX-License-Identifier: Apache-2.0
"""Pause the agent, so that it moves no guests, by a file in the state directory.

The file contains the time in seconds since the epoch, a space, and the reason. The agent is paused
while the file exists, whatever its content. A reboot removes it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging

FILE = 'paused'
_SIZE_MAX_BYTES = 4096
REASON_MAX = 200


class Paused(Record):
    """A pause of the agent.

    :param since_s: CLOCK_REALTIME of its beginning [s since the epoch]; None if unknown
    :param reason: why the agent was paused
    """

    since_s: float | None
    reason: str

    def __str__(self) -> str:
        return 'paused' + (': ' + self.reason if self.reason else '')


def read(directory: str) -> Paused | None:
    """Return since when and why the agent is paused; None if it is not paused.

    :param directory: path of the state directory
    """
    try:
        data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    except StateError as error:
        return Paused(None, str(error))
    return None if data is None else _parse(data.decode('utf-8', 'replace'))


def _parse(text: str) -> Paused:
    since, _, reason = text.rstrip('\n').partition(' ')
    return Paused(int(since) if is_number(since) else None, printable(reason[:REASON_MAX]))


def begin(directory: str, reason: str = '', realtime_s: float | None = None) -> Paused:
    """Pause the agent, or change the time and reason of a pause.

    :returns: the pause as written; another process may have ended it since
    :raises StateError: the state directory cannot be trusted, or the file cannot be written
    """
    text = '%d %s\n' % (time.time() if realtime_s is None else realtime_s, reason)
    state_files.write(directory, FILE, text.encode())
    return _parse(text)


def end(directory: str) -> bool:
    """End the pause of the agent.

    :returns: whether the agent was paused
    :raises StateError: the state directory cannot be trusted, or the file cannot be removed
    """
    try:
        with state_files.StateDirectory(directory, create=False) as state_directory:
            os.unlink(FILE, dir_fd=state_directory.fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(
            '%s: %s: remove it' % (os.path.join(directory, FILE), error.strerror)
        ) from None
    return True


class PauseWatch:
    """Reads the pause anew in each tick, and logs when one begins and when it ends.

    :param directory: path of the state directory
    """

    def __init__(self, directory: str, log: logging.Logger) -> None:
        self._directory, self._log = directory, log
        self._previous: Paused | None = None

    def refresh(self) -> Paused | None:
        """Read the pause anew and return it; None if the agent is not paused."""
        paused = read(self._directory)
        if paused and not self._previous:
            self._log.info('%s; guests are held, and none is moved', paused)
        elif self._previous and not paused:
            self._log.info('resumed: guests may be moved again')
        self._previous = paused
        return paused
