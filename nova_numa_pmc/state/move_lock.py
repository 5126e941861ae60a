# SPDX-License-Identifier: Apache-2.0
"""Let one process at a time move a host's guests: the agent, or an operator's command.

This is separate from the lock of the promises, because it is held for as long as a move takes,
while starts of guests wait for the lock of the promises.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import StateError, StateLocked, StateUnavailable
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging

#: Name of the lock file in the state directory; its text names the process that holds the lock.
LOCK = 'moves'
_NAME_MAX = 200


class MoveLock:
    """The lock that a process must hold to move guests.

    :param directory: path of the state directory
    :param name: name of the holder, such as 'nova-numa-agent' or 'nova-numa-rebalance apply'
    :ivar had_other_holder: whether it was found, when it was taken, that another process had held
        it in the meantime; only the caller clears this
    """

    def __init__(self, directory: str, name: str) -> None:
        self._directory = directory
        self._text = '%s (process %d)' % (name, os.getpid())
        self.had_other_holder = False
        self._lock: state_files.OpenFile | None = None

    def take(self, timeout_s: float = 0.0) -> None:
        """Take the lock, unless it is held already.

        :raises StateLocked: another process has held the lock for longer than ``timeout_s``; the
            message names it
        :raises StateUnavailable: the lock cannot be opened at the moment
        :raises StateError: the state directory cannot be trusted or created
        """
        if self._lock is not None:
            return
        try:
            with state_files.StateDirectory(self._directory) as directory:
                self._lock = directory.lock(LOCK, timeout_s)
        except StateLocked:
            raise StateLocked('%s is moving guests' % self._holder()) from None
        if self._holder() == self._text:
            return
        self.had_other_holder = True
        try:
            os.ftruncate(self._lock.fd, 0)
            os.pwrite(self._lock.fd, self._text.encode(), 0)
        except OSError:
            pass  # the file system is full, so others cannot read which process holds the lock

    def _holder(self) -> str:
        try:
            with open(os.path.join(self._directory, LOCK), encoding='utf-8') as file:
                text = file.read(_NAME_MAX)
        except (OSError, UnicodeDecodeError):
            text = ''
        return text if text.isprintable() and text else 'another process'

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> MoveLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class AgentMoveLock:
    """The agent's move lock.

    It is taken without waiting. A line is logged when it is not available, and when it is again.

    :param directory: path of the state directory
    """

    def __init__(self, directory: str, log: logging.Logger) -> None:
        self._log = log
        self._move_lock = MoveLock(directory, 'nova-numa-agent')
        self._is_locked_out = False

    def take(self) -> bool:
        """Take the lock, and return whether guests may be held and moved in this tick.

        They may also be held and moved if the state directory cannot be trusted, because no
        command can hold the lock then either. The reader of the promises reports that problem.
        """
        try:
            self._move_lock.take()
        except (StateLocked, StateUnavailable) as error:
            if not self._is_locked_out:
                self._log.info('%s: the agent neither holds nor moves guests meanwhile', error)
            self._is_locked_out = True
            return False
        except StateError:
            pass
        if self._is_locked_out:
            self._log.info('the agent holds and moves guests again')
        self._is_locked_out = False
        return True

    def pop_others_moved(self) -> bool:
        """Return whether another process may have moved guests since the last call."""
        others_moved, self._move_lock.had_other_holder = self._move_lock.had_other_holder, False
        return others_moved

    def release(self) -> None:
        """Release the lock."""
        self._move_lock.release()
