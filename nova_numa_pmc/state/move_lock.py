# SPDX-License-Identifier: Apache-2.0
"""Let one process at a time move a host's guests: the agent, or an operator's command.

Who moves guests has a turn, with a lease that is renewed before each step of a move. If it is not,
because the process is suspended or hangs, the turn is over, and another process may take it; who
continues after its lease has expired finds out before its next step, and ends its move. Holding
guests to their places takes no turn: it only leaves out the guests that another process is moving
at that moment.

The file has the turns of the processes that run and have not ended theirs. It is replaced
atomically and read without a lock. The lock is only held while the file is changed, so a process
that is suspended keeps it from nobody.
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
_MAJOR = 2
_SIZE_MAX_BYTES, _TURNS_MAX = 1 << 16, 16


class TurnLost(StateError):
    """The lease of a turn has expired, so another process may be moving guests."""


class Turn(Record):
    """A turn at moving guests.

    :param holder: name of the holder, with its process id
    :param pid, start_ns: the holder's process: its id, and its start after the host's boot [ns]
    :param token: distinguishes the turns
    :param expires_ns: CLOCK_BOOTTIME at which it expires
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
        return 0 < self.expires_ns - boottime_ns <= LEASE_S * 1e9 and self.is_running()

    def is_running(self) -> bool:
        """Return whether the holder runs: among the processes that this one sees."""
        return files.process_start_ns(self.pid, '/') == self.start_ns


class _Turns(Record):
    """The content of the file.

    :param last: token of the turn that was taken last
    """

    last: str = ''
    turns: tuple[Turn, ...] = ()


def read_lapsed(directory: str) -> tuple[Turn, ...]:
    """Return the turns that have expired because their holders do not go on.

    :param directory: path of the state directory
    """
    boottime_ns = files.boottime_ns()
    return tuple(
        turn
        for turn in _read(directory).turns
        if turn.expires_ns <= boottime_ns and turn.is_running()
    )


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
        with self._locked():
            turns, boottime_ns = _read_if_available(self._directory), self._clock()
            for turn in self._others(turns):
                if turn.is_in_force(boottime_ns):
                    raise StateLocked('%s is moving guests' % turn.holder)
            is_ours = turns.last == self._turn.token
            self._extend(turns, self._turn.guests if is_ours else ())
        self.had_other_holder = self.had_other_holder or not is_ours

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
            with self._locked():
                turns = _read_if_available(self._directory)
                if turns.last not in ('', turn.token):  # its holder may have ended it
                    holders = {other.token: other.holder for other in turns.turns}
                    raise TurnLost(
                        '%s has moved guests since' % holders.get(turns.last, 'another process')
                    )
                self._extend(turns, tuple(guests))
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
            with self._locked():
                turns = _read(self._directory)
                self._write(_Turns(turns.last, self._others(turns)))
        except (StateError, OSError):
            pass  # it ends when the lease expires, or with this process

    def guests_of_others(self) -> frozenset[str]:
        """Return the uuids of the guests that another process is moving."""
        boottime_ns = self._clock()
        return frozenset(
            uuid
            for turn in self._others(_read(self._directory))
            if turn.is_in_force(boottime_ns)
            for uuid in turn.guests
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (
            state_files.StateDirectory(self._directory) as directory,
            directory.lock(LOCK, _LOCK_TIMEOUT_S),
        ):
            yield

    def _others(self, turns: _Turns) -> tuple[Turn, ...]:
        """Return the turns of other processes that still run."""
        others = [turn for turn in turns.turns if turn.token != self._turn.token]
        return tuple(turn for turn in others[-_TURNS_MAX:] if turn.is_running())

    def _extend(self, turns: _Turns, guests: tuple[str, ...]) -> None:
        """Write our turn, with a new lease, as the last one that was taken."""
        expires_ns = self._clock() + int(LEASE_S * 1e9)
        turn = self._turn._replace(expires_ns=expires_ns, guests=guests)
        self._write(_Turns(turn.token, (*self._others(turns), turn)))
        self._turn = turn

    def _write(self, turns: _Turns) -> None:
        state_files.write(self._directory, FILE, json_values.encode(turns, _MAJOR))

    def __enter__(self) -> MoveLock:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read(directory: str) -> _Turns:
    """Return the content of the file; nobody's turn if it cannot be read or trusted."""
    try:
        return _read_if_available(directory)
    except StateUnavailable:
        return _Turns()


def _read_if_available(directory: str) -> _Turns:
    """Return the content of the file; nobody's turn if it is damaged or cannot be trusted.

    :raises StateUnavailable: it cannot be read at the moment
    """
    try:
        data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
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
