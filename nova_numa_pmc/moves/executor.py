# SPDX-License-Identifier: Apache-2.0
"""Make planned moves in small steps: first the promises, then the CPUs, then the memory.

The new place is promised before anything is written, so that the start of another guest takes it
into account, and an agent that is restarted after being killed knows the intended place. A move is
undone if most of the memory does not follow.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.plan_records import explain_why
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import (
    GuestGone,
    PageMoveError,
    StateError,
    StateLocked,
    describe,
    is_expected,
)
from nova_numa_pmc.host.page_moves import guest_move
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.moves.move_promises import (
    MovePostponed,
    MovePromises,
    MoveRefused,
    PendingMove,
    StartedMove,
)
from nova_numa_pmc.placing import decide
from nova_numa_pmc.problem_log import ProblemLog
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, move_lock

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.conf.opts import AgentOptions
    from nova_numa_pmc.core import pools
    from nova_numa_pmc.state.move_lock import MoveLock

MADE = 'made'
#: Results by which moves are counted; a move that was made in part counts as made.
COUNTED_RESULTS = (MADE, history.TAKEN_BACK, history.REFUSED)
_COUNTED_AS = {history.DONE: MADE, history.PARTLY: MADE, history.SPLIT: history.TAKEN_BACK}
#: Beginning of the log message about a move that was given up, by its result.
_GIVEN_UP = {
    history.REFUSED: 'not moved',
    history.TAKEN_BACK: 'undone',
    history.PARTLY: 'not fully undone',
    history.SPLIT: 'undone',
}


class MoveTotals(Record):
    """Totals of moves since the agent was started.

    :param ended: {(one of :data:`plan_records.KINDS`, one of :data:`COUNTED_RESULTS`): number of
        moves}; replaced when it changes, because other threads read it
    :param moved_bytes: bytes that were moved
    :param guests_moving: number of guests that are being moved now
    """

    ended: dict[tuple[str, str], int] = {}
    moved_bytes: int = 0
    guests_moving: int = 0


class MoveExecutor:
    """The move in progress and the pending moves.

    :param clock: function that returns monotonic time in seconds
    :param mover, batch: ``mover`` and ``batch`` of :class:`history.HistoryEntry`
    :param on_history_entry: function that is called with an entry of the history when a move
        begins and when it ends
    :param problem_log: logs when the history cannot be written; None: one of its own
    :param turn: the turn at moving guests, which is renewed before each step; None: nobody else
        moves guests
    :ivar move_promises: records the promises, and has the options in force
    :ivar pool: the floating pool; None for the pool as it is published
    :ivar not_begun: the moves that were refused or dropped; the planner empties it
    """

    def __init__(
        self,
        options: AgentOptions,
        root: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        mover: str = history.AGENT,
        batch: str = '',
        on_history_entry: Callable[[history.HistoryEntry], object] = lambda entry: None,
        problem_log: ProblemLog | None = None,
        kernel: KernelCalls = KERNEL_CALLS,
        turn: MoveLock | None = None,
    ) -> None:
        self._root = root
        self._log = log
        self._clock = clock
        self._turn = turn
        self._mover = mover
        self._batch = batch
        self._on_history_entry = on_history_entry
        self._problem_log = problem_log or ProblemLog(log, clock)
        self.move_promises = MovePromises(options, root, clock, mover, kernel)
        self.pool: pools.Pool | None = None
        self._queue: collections.deque[PendingMove] = collections.deque()
        self._id = ''
        self._started: StartedMove | None = None  # the move in progress
        self.not_begun: list[plan_records.Move] = []
        self._interrupted: set[str] = set()
        self._has_moved = False
        self._why_all_stay = ''
        self._ended: dict[tuple[str, str], int] = {}
        self._moved_bytes = 0

    @property
    def busy(self) -> bool:
        """Return whether a move is in progress or pending."""
        return bool(self._queue or self._started)

    @property
    def totals(self) -> MoveTotals:
        """Return the totals so far."""
        return MoveTotals(self._ended, self._moved_bytes, int(self._started is not None))

    @property
    def in_progress(self) -> tuple[str, guest_move.Progress] | None:
        """Return (guest's name, progress) of the move in progress; None if there is none."""
        started = self._started
        return (started.move.name, started.guest_move.progress) if started else None

    def enqueue(
        self,
        plan: plan_records.Plan,
        promised: Mapping[str, model.Promise],
        targets: Mapping[str, model.Promise] | None = None,
    ) -> None:
        """Append the moves of a plan to the pending moves; :meth:`step` makes them.

        :param promised, targets: as in :class:`PendingMove`
        """
        self._queue.extend(PendingMove(move, promised, targets or {}) for move in plan.moves)

    def step(self) -> float | None:
        """Make the next step.

        :returns: time to wait before the next step [s]; None if there are no more moves
        """
        if not self.busy:
            return None
        self._has_moved = True
        self.keep_turn()
        started = self._started
        if started is None:
            if not self._all_stay() and self._queue:
                self._begin(self._queue.popleft())
                return 0.0
            return None
        try:
            progress = started.guest_move.step()
        except Exception as error:
            self._give_up(started.move, started, error)
            return 0.0
        if progress.state == guest_move.MOVING:
            return min(progress.wait_s, move_lock.RENEW_S)
        self._end(started)
        return 0.0

    def _all_stay(self) -> bool:
        """Drop the pending moves if no guest may be moved now, and return whether that is so."""
        why = self.move_promises.why_all_stay()
        if why and why != self._why_all_stay:
            self._log.warning('%s: no guest is moved meanwhile', why)
        self._why_all_stay = why
        if why:
            self.clear_queue()
        return bool(why)

    def keep_turn(self) -> None:
        """Renew the turn, if moves are in progress or pending; end them if it was lost.

        Memory that has moved by then is treated as when a move is cancelled.
        """
        if self._turn is None or not self.busy:
            return
        move = self._started.move if self._started else self._queue[0].move
        try:
            self._turn.renew([move.uuid])
        except move_lock.TurnLost as error:
            self._log.warning('%s: its moves end', error)
            self.clear_queue()
            self._cancel()

    def clear_queue(self) -> None:
        """Drop the pending moves."""
        dropped = [pending_move.move for pending_move in self._queue]
        self._interrupted.update(move.uuid for move in dropped)
        self.not_begun += dropped
        self._queue.clear()

    def end_move(self) -> None:
        """Drop the pending moves, and end the move in progress.

        It is kept if most of the memory has moved, and undone otherwise.
        """
        self.clear_queue()
        self._cancel()
        while self._started:
            self.step()

    def pop_interrupted(self) -> set[str]:
        """Return the uuids of guests with moves postponed or cancelled since the last call."""
        interrupted, self._interrupted = self._interrupted, set()
        return interrupted

    def pop_moved(self) -> bool:
        """Return whether a move was begun, continued or ended since the last call."""
        has_moved, self._has_moved = self._has_moved, False
        return has_moved

    def _cancel(self) -> None:
        if self._started:
            self._interrupted.add(self._started.move.uuid)
            self._started.guest_move.cancel()

    def _begin(self, pending_move: PendingMove) -> None:
        """Promise the new place and write the CPUs."""
        self._id = history.new_id()
        try:
            host = decide.host_with_pool_cpus(self._root, self.pool)
            started = self.move_promises.start(pending_move, host)
            # The history is written before the promise, so that it has every move even if the
            # process is killed, and outside of the promises' lock, so that no start of a guest
            # waits for a disk. A move that it lacks could not be undone, and is not begun.
            why = 'in progress, or the process that made it was killed'
            try:
                self._append_to_history(started.move, started, history.BEGUN, why)
            except (OSError, StateError) as error:
                raise MoveRefused('the history cannot be written: %s' % error) from None
            self.move_promises.record(started, host)
            self._started = started
            started.guest_move.step()
        except Exception as error:
            self._give_up(pending_move.move, self._started, error)

    def _end(self, started: StartedMove) -> None:
        """Keep a move whose memory has followed, and undo any other."""
        move, progress = started.move, started.guest_move.progress
        if not progress.has_followed:
            why = 'most of its memory stays where it was (%s)' % str(progress)
            self._give_up(move, started, PageMoveError(why))
            return
        is_done = progress.state == guest_move.DONE
        self._log.info(
            'guest %s: %s: %s, %d MiB in %.0f ms%s; %s',
            move.name,
            move.kind,
            _route(move),
            progress.moved_bytes >> 20,
            1e3 * (self._clock() - started.began_s),
            '' if is_done else ' (%s)' % str(progress),
            explain_why(move),
        )
        result = history.DONE if is_done else history.PARTLY
        self._finish(move, started, result, explain_why(move) if is_done else str(progress))

    def _give_up(
        self, move: plan_records.Move, started: StartedMove | None, cause: Exception
    ) -> None:
        """Undo the changes of promise and CPUs; memory that has moved stays where it is.

        If the change of the promise cannot be undone, the CPUs are left as they are, too. The
        guest is then at its promised place, and the next plan deals with its memory.

        :param started: the move as it was begun; None if it was not
        """
        if isinstance(cause, (StateLocked, MovePostponed)):  # it was not tried
            self._interrupted.add(move.uuid)
        result = history.REFUSED
        if started is None:
            self.not_begun.append(move)
        else:
            has_moved = bool(started.guest_move.progress.moved_bytes)
            result = history.SPLIT if has_moved else history.TAKEN_BACK
            try:
                if self.move_promises.undo(started):
                    started.guest_move.undo_cpus()
                else:  # it has been promised another place, which holds
                    result = history.PARTLY
            except GuestGone:
                pass
            except Exception as error:
                traceback = None if is_expected(error) else error
                self._log.warning('guest %s: %s', move.name, describe(error), exc_info=traceback)
                result = history.PARTLY
        outcome, why = _GIVEN_UP[result], describe(cause)
        if result == history.SPLIT:
            why += '; the memory that had moved stays there until "undo" brings it back'
        if isinstance(cause, GuestGone):
            self._log.info('%s: %s', outcome, why)
        else:
            traceback = None if is_expected(cause) else cause
            self._log.warning('%s: %s: %s', outcome, move.name, why, exc_info=traceback)
        self._finish(move, started, result, why)

    def _finish(
        self, move: plan_records.Move, started: StartedMove | None, result: str, why: str
    ) -> None:
        """Count a move that has ended, and append it to the history."""
        self._started = None
        key = move.kind, _COUNTED_AS.get(result, result)
        self._ended = {**self._ended, key: self._ended.get(key, 0) + 1}
        if started:
            self._moved_bytes += started.guest_move.progress.moved_bytes
        with self._problem_log.stage('recording moves in the history'):
            self._append_to_history(move, started, result, why)

    def _append_to_history(
        self, move: plan_records.Move, started: StartedMove | None, result: str, why: str
    ) -> None:
        """Append the beginning or the result of a move to the history.

        :param started: the move as it was begun; None if it was not
        :raises StateError, OSError: it cannot be written
        """
        entry = history.new_entry(self._id, move, self._mover, self._batch, result, why)
        if started:
            entry = entry._replace(
                since_ns=started.before.since_ns,
                before=history.place_of(started.before),
                after=history.place_of(started.after),
                moved_bytes=started.guest_move.progress.moved_bytes,
                duration_s=round(max(0.0, self._clock() - started.began_s), 3),
            )
        self._on_history_entry(entry)
        history.append(entry, self._root)


def _route(move: plan_records.Move) -> str:
    """Return between which nodes a guest was moved; a fetch moves memory alone."""
    if move.kind == plan_records.FETCH:
        return 'memory to %s' % name_nodes(move.mem_nodes)
    return 'from %s to %s' % (name_nodes(move.from_nodes), name_nodes(move.to_nodes))
