# SPDX-License-Identifier: Apache-2.0
"""Let one process at a time move a host's guests: the agent, or an operator's command.

Who moves guests has a turn, with a lease that is renewed before each step of a move. If it is not,
because the process is suspended or hangs, the turn is over, and another process may take it; who
continues after its lease has expired finds out before its next step, and ends its move. Holding
guests to their places takes no turn: it only leaves out the guests that another process is moving
at that moment.

The turns are in a file that is replaced atomically and read without a lock. The lock is only held
while the file is changed, so a process that is suspended keeps it from nobody.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.exceptions import StateError, StateLocked, StateUnavailable
from nova_numa_pmc.host import files
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Collection, Iterator

#: Names of the lock file and of the file with the turns, in the state directory.
LOCK, FILE = 'moves', 'turns'
#: Time for which a turn lasts unless it is renewed [s] (assumed: many times what a step takes, a
#: batch of pages, on a host that is short of CPU time).
LEASE_S = 30.0
#: Time after which it is renewed [s].
RENEW_S = LEASE_S / 4
#: Interval at which a process that waits for its turn looks again [s].
_POLL_S = 0.05
#: How long to wait for the lock, which is held for a fraction of a millisecond [s].
_LOCK_TIMEOUT_S = 0.1
_MAJOR = 1
_SIZE_MAX_BYTES, _LAPSED_MAX, _GUESTS_MAX = 1 << 16, 16, 256


class TurnLost(StateError):
    """The lease of a turn has expired, so another process may be moving guests."""


class Turn(Record):
    """A turn at moving guests.

    :param holder: name of the holder, with its process id
    :param pid, start_ns: the holder's process: its id, and its start after the host's boot [ns]
    :param token: distinguishes the turns
    :param expires_ns: CLOCK_BOOTTIME at which it expires; 0: it was ended by its holder
    :param guests: uuids of the guests that are being moved
    """

    holder: str
    pid: int
    start_ns: int
    token: str
    expires_ns: int
    guests: tuple[str, ...] = ()

    def is_in_force(self, boottime_ns: int) -> bool:
        """Return whether the turn keeps others from moving guests.

        One that expires later than a lease allows was taken before a reboot.
        """
        return 0 < self.expires_ns - boottime_ns <= LEASE_S * 1e9 and self._is_running()

    def has_lapsed(self, boottime_ns: int) -> bool:
        """Return whether the holder still runs, but has let its lease expire."""
        return 0 < self.expires_ns <= boottime_ns and self._is_running()

    def _is_running(self) -> bool:
        # Among the processes that this one sees, wherever the state directory is.
        return files.process_start_ns(self.pid, '/') == self.start_ns


class _Turns(Record):
    """The content of the file.

    :param last: the turn that was taken last
    :param lapsed: earlier turns that have expired, and whose holders still ran
    """

    last: Turn | None = None
    lapsed: tuple[Turn, ...] = ()


def read_lapsed(directory: str) -> tuple[Turn, ...]:
    """Return the turns that have expired because their holders do not go on.

    :param directory: path of the state directory
    """
    turns, boottime_ns = _read(directory), files.boottime_ns()
    every = (*turns.lapsed, *((turns.last,) if turns.last else ()))
    return tuple(turn for turn in every if turn.has_lapsed(boottime_ns))


def lapsed_text(turn: Turn) -> str:
    """Return the text about a turn that has expired."""
    return '%s has not gone on with its moves for over %.0f s: it is suspended or hangs' % (
        turn.holder,
        LEASE_S + (files.boottime_ns() - turn.expires_ns) / 1e9,
    )


class MoveLock:
    """The turn that a process must have to move guests.

    :param directory: path of the state directory
    :param name: name of the holder, such as 'nova-numa-agent' or 'nova-numa-rebalance apply'
    :param clock: function that returns CLOCK_BOOTTIME [ns]
    :ivar had_other_holder: whether it was found, when it was taken, that another process had had
        the turn in the meantime; only the caller clears this
    """

    def __init__(
        self, directory: str, name: str, clock: Callable[[], int] = files.boottime_ns
    ) -> None:
        self._directory = directory
        self._clock = clock
        pid = os.getpid()
        self._turn = Turn(
            '%s (process %d)' % (name, pid),
            pid,
            files.process_start_ns(pid, '/') or 0,
            os.urandom(8).hex(),
            expires_ns=0,
        )
        self.had_other_holder = False

    def take(self, timeout_s: float = 0.0) -> None:
        """Take the turn, or renew it.

        :raises StateLocked: another process has had the turn for longer than ``timeout_s``; the
            message names it
        :raises StateUnavailable: the turns cannot be read or written at the moment
        :raises StateError: the state directory cannot be trusted or created
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self._take()
                return
            except StateLocked:
                remaining_s = deadline_s - time.monotonic()
                if remaining_s <= 0:
                    raise
                time.sleep(min(_POLL_S, remaining_s))

    def _take(self) -> None:
        with self._locked() as directory:
            turns, boottime_ns = _read_from(directory), self._clock()
            last = turns.last
            is_ours = last is not None and last.token == self._turn.token
            if last and not is_ours and last.is_in_force(boottime_ns):
                raise StateLocked('%s is moving guests' % last.holder)
            self._write(directory, turns, boottime_ns, self._turn.guests if is_ours else ())
        if not is_ours:
            self.had_other_holder = True

    def renew(self, guests: Collection[str] = ()) -> None:
        """Extend the lease before a step of a move.

        Nothing is done if there is no turn, because the state directory cannot be trusted.

        :param guests: uuids of the guests that are being moved
        :raises TurnLost: the lease has expired
        """
        turn, boottime_ns = self._turn, self._clock()
        if not turn.expires_ns:
            return
        if boottime_ns >= turn.expires_ns:
            raise TurnLost(
                'the turn of %s at moving guests expired while it did not go on' % turn.holder
            )
        if (
            set(guests) == set(turn.guests)
            and turn.expires_ns - boottime_ns > (LEASE_S - RENEW_S) * 1e9
        ):
            return
        try:
            with self._locked() as directory:
                turns = _read_from(directory)
                if turns.last and turns.last.token != turn.token:
                    raise TurnLost('%s moves guests now' % turns.last.holder)
                self._write(directory, turns, boottime_ns, tuple(guests))
        except TurnLost:
            raise
        except StateError:
            pass  # the lease goes on until it expires

    def release(self) -> None:
        """End the turn, if it is held."""
        if not self._turn.expires_ns:
            return
        self._turn = self._turn._replace(expires_ns=0, guests=())
        try:
            with self._locked() as directory:
                turns = _read_from(directory)
                is_last = turns.last is not None and turns.last.token == self._turn.token
                self._replace(directory, turns, self._turn if is_last else turns.last)
        except (StateError, OSError):
            pass  # it ends when the lease expires, or with this process

    def guests_of_others(self) -> frozenset[str]:
        """Return the uuids of the guests that another process is moving."""
        last = _read(self._directory).last
        if last is None or last.token == self._turn.token or not last.is_in_force(self._clock()):
            return frozenset()
        return frozenset(last.guests)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[state_files.StateDirectory]:
        with (
            state_files.StateDirectory(self._directory) as directory,
            directory.lock(LOCK, _LOCK_TIMEOUT_S),
        ):
            yield directory

    def _write(
        self,
        directory: state_files.StateDirectory,
        turns: _Turns,
        boottime_ns: int,
        guests: tuple[str, ...],
    ) -> None:
        turn = self._turn._replace(
            expires_ns=boottime_ns + int(LEASE_S * 1e9), guests=guests[:_GUESTS_MAX]
        )
        self._replace(directory, turns, turn)
        self._turn = turn

    def _replace(
        self, directory: state_files.StateDirectory, turns: _Turns, last: Turn | None
    ) -> None:
        """Replace the file; a turn that its holder did not end stays in it."""
        others = (*turns.lapsed, *((turns.last,) if turns.last else ()))
        lapsed = [
            turn
            for turn in others
            if turn.token not in (self._turn.token, last and last.token)
            and turn.has_lapsed(self._clock())
        ]
        content = _Turns(last, tuple(lapsed[-_LAPSED_MAX:]))
        directory.replace(FILE, json_values.encode(content, _MAJOR))

    def __enter__(self) -> MoveLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read(directory: str) -> _Turns:
    try:
        with state_files.StateDirectory(directory, create=False) as state_directory:
            return _read_from(state_directory)
    except (FileNotFoundError, StateError):
        return _Turns()


def _read_from(directory: state_files.StateDirectory) -> _Turns:
    """Return the content of the file; nobody's turn if it is damaged."""
    try:
        data = directory.read(FILE, _SIZE_MAX_BYTES)
        return json_values.decode(_Turns, data, _MAJOR) if data else _Turns()
    except StateUnavailable:
        raise
    except (StateError, ValueError):
        return _Turns()


class AgentMoveLock(MoveLock):
    """The agent's turn at moving guests.

    It is taken without waiting. A line is logged when it is not available, and when it is again.

    :param directory: path of the state directory
    """

    def __init__(
        self, directory: str, log: logging.Logger, clock: Callable[[], int] = files.boottime_ns
    ) -> None:
        super().__init__(directory, 'nova-numa-agent', clock)
        self._log = log
        self._is_locked_out = False

    def try_take(self) -> bool:
        """Take the turn, and return whether guests may be moved.

        They may also be moved if the state directory cannot be trusted, because no command can
        have the turn then either. The reader of the promises reports that problem.
        """
        try:
            self.take()
        except (StateLocked, StateUnavailable) as error:
            if not self._is_locked_out:
                self._log.info('%s: the agent moves no guests meanwhile', error)
            self._is_locked_out = True
            return False
        except StateError:
            self.release()
        if self._is_locked_out:
            self._log.info('the agent moves guests again')
        self._is_locked_out = False
        return True

    def pop_others_moved(self) -> bool:
        """Return whether another process may have moved guests since the last call."""
        others_moved, self.had_other_holder = self.had_other_holder, False
        return others_moved
