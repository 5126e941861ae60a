# SPDX-License-Identifier: Apache-2.0
"""Pause the agent, so that it moves no guests, by a file that outlasts a reboot.

The agent is paused while the file exists, whatever its content, unless that says until when. A
configuration management may therefore put any file there, with the reason as its first line. The
agent stops itself if the last moves did not pay: then only memory is not moved.
"""

from __future__ import annotations

import os
import time

from nova_numa_pmc import json_values
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

DIRECTORY = state_files.PERSISTENT
FILE = 'paused'
#: The agent's own file, so that no pause of the operator ends its stop.
STOP_FILE = 'moves-stopped'
_MAJOR = 1
_SIZE_MAX_BYTES = 4096
REASON_MAX = 200
#: The latest end that is shown: 9999-01-01; localtime(3) fails for absurd times.
_UNTIL_MAX_S = 253370764800.0


class Paused(Record):
    """A pause of the agent.

    :param since_s: CLOCK_REALTIME of its beginning [s since the epoch]; None if unknown
    :param reason: why the agent was paused
    :param until_s: CLOCK_REALTIME of its end; None: until the operator ends it
    :param only_memory: whether guests may still be widened
    """

    since_s: float | None = None
    reason: str = ''
    until_s: float | None = None
    only_memory: bool = False

    def __str__(self) -> str:
        until = ''
        if self.until_s is not None:
            end = time.localtime(min(self.until_s, _UNTIL_MAX_S))
            until = time.strftime(' until %Y-%m-%d %H:%M', end)
        what = 'moves of memory paused' if self.only_memory else 'paused'
        return '%s%s%s' % (what, until, ': ' + self.reason if self.reason else '')


def path(root: str = '/') -> str:
    """Return the path of the file."""
    return os.path.join(root, DIRECTORY, FILE)


def read(root: str = '/', with_stop: bool = True) -> Paused | None:
    """Return since when and why the agent is paused; None if it is not paused.

    :param with_stop: whether the agent's own stop of moves of memory counts
    """
    return _read(root, FILE) or (_read(root, STOP_FILE) if with_stop else None)


def _read(root: str, file: str) -> Paused | None:
    try:
        data = state_files.read(os.path.join(root, DIRECTORY), file, _SIZE_MAX_BYTES)
    except StateError as error:
        return Paused(reason=str(error))
    if data is None:
        return None
    try:
        paused = json_values.decode(Paused, data, _MAJOR)
    except ValueError:
        return Paused(reason=_reason(data.decode('utf-8', 'replace').partition('\n')[0]))
    is_over = paused.until_s is not None and paused.until_s <= time.time()
    return None if is_over else paused._replace(reason=_reason(paused.reason))


def _reason(text: str) -> str:
    return json_values.printable(text[:REASON_MAX])


def begin(
    root: str = '/', reason: str = '', duration_s: float | None = None, only_memory: bool = False
) -> Paused:
    """Pause the agent, or change a pause.

    :param duration_s: how long; None: until the operator ends the pause
    :param only_memory: whether guests may still be widened
    :returns: the pause as written; another process may have ended it since
    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    now_s = round(time.time(), 3)
    until_s = None if duration_s is None else now_s + duration_s
    paused = Paused(now_s, _reason(reason), until_s, only_memory)
    data = json_values.encode(paused, _MAJOR)
    file = STOP_FILE if only_memory else FILE
    state_files.write(os.path.join(root, DIRECTORY), file, data, durable=True)
    return paused


def end(root: str = '/') -> bool:
    """End the pause of the agent, and let it move memory again.

    :returns: whether the agent was paused
    :raises StateError: the directory cannot be trusted, or the file cannot be removed
    """
    was_paused = read(root) is not None
    directory = os.path.join(root, DIRECTORY)
    for file in (FILE, STOP_FILE):
        try:
            with state_files.StateDirectory(directory, create=False) as state_directory:
                os.unlink(file, dir_fd=state_directory.fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            where = os.path.join(directory, file)
            raise StateError('%s: %s: remove it' % (where, error.strerror)) from None
    return was_paused
