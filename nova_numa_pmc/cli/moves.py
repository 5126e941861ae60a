# SPDX-License-Identifier: Apache-2.0
"""Show a plan, ask the operator, and make its moves while the agent makes none.

Their progress is shown. A signal ends them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.plan_records import explain_move, explain_remark
from nova_numa_pmc.exceptions import StateLocked
from nova_numa_pmc.json_values import printable, to_json
from nova_numa_pmc.moves import executor
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history, move_lock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from nova_numa_pmc import model
    from nova_numa_pmc.cli.context import CommandContext, ObservedHost
    from nova_numa_pmc.host.page_moves import guest_move

#: Number of guests named for each reason to leave guests alone.
_NAMES_SHOWN = 6
#: Time after which waiting for the move lock is reported [s]; a tick of the agent takes less.
_QUIET_WAIT_S = 0.5
#: The options of the commands that plan moves.
PLANNING = (
    arguments.option(
        'guest',
        nargs='*',
        metavar='GUEST',
        help='consider only these guests (name, uuid or libvirt id)',
    ),
    arguments.interval(),
    arguments.option(
        '--payback',
        type=arguments.duration_s,
        default=planner.PAYBACK_S,
        metavar='DURATION',
        help='time within which a move has to pay, if the load stays as it is (default: 10m)',
    ),
    arguments.ROOT,
    arguments.JSON,
)


class MovesResult(Record):
    """Result of a run of moves.

    :param batch: the id that the moves share in the history
    :param entries: the history entries, one for each move that was tried
    :param not_begun: number of moves that were not begun
    :param not_paying: (name of the guest, why) of moves that no longer paid in their turn
    :param signal: number of the signal that ended the run, or None
    """

    batch: str
    entries: tuple[history.HistoryEntry, ...]
    not_begun: int = 0
    not_paying: tuple[tuple[str, str], ...] = ()
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        if not self.not_begun and all(entry.result == history.DONE for entry in self.entries):
            return arguments.OK
        return (
            arguments.PARTLY
            if any(entry.is_in_effect for entry in self.entries)
            else arguments.PROBLEM
        )


class _MessagePrinter(logging.Handler):
    """Log handler that prints the messages of the moves."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message, without characters that could control a terminal."""
        # Even without a terminal, the move in progress has to be completed and recorded.
        with contextlib.suppress(OSError, ValueError):
            print(_line_start() + printable(record.getMessage()), file=sys.stderr, flush=True)


def _line_start() -> str:
    """Return what clears the terminal's line, in which the progress is shown."""
    return '\r\x1b[K' if sys.stderr.isatty() else ''


def _show_progress(in_progress: tuple[str, guest_move.Progress] | None) -> None:
    """Show on a terminal how far the guest's memory has moved."""
    if in_progress and sys.stderr.isatty():
        name, progress = in_progress
        text = '%s: %s moved, %s left' % (
            printable(name),
            tables.short_number(progress.moved_bytes, 1024),
            tables.short_number(progress.left_bytes, 1024),
        )
        print(_line_start() + text, end='', file=sys.stderr, flush=True)


def take_move_lock(command: CommandContext, mover: str, wait_s: float) -> move_lock.MoveLock:
    """Take the move lock and return it, as a context manager that releases it.

    :param mover: :data:`history.APPLY`, :data:`history.UNDO`, :data:`history.PIN` or 'ignore'
    :param wait_s: how long to wait for another process that moves guests [s]
    :raises StateLocked: another process holds the lock for longer
    """
    lock = move_lock.MoveLock(command.directory, 'nova-numa-rebalance ' + mover)
    try:
        lock.take(min(wait_s, _QUIET_WAIT_S))
    except StateLocked as error:
        print('%s: waiting for up to %g s' % (error, wait_s), file=sys.stderr, flush=True)
        try:
            lock.take(wait_s)
        except StateLocked as second_error:
            raise StateLocked(
                '%s: nothing was done: try again later, wait longer (--wait), or stop the '
                'agent\'s moves with "nova-numa-rebalance pause"' % second_error
            ) from None
    return lock


def make_moves(
    command: CommandContext,
    plan: plan_records.Plan,
    observed: ObservedHost,
    mover: str,
    wait_s: float = 0.0,
    targets: dict[str, model.Promise] | None = None,
    why_not: Callable[[plan_records.Move, Callable[[float], None]], str] = lambda move, wait: '',
) -> MovesResult:
    """Make the moves of a plan, one after the other.

    :param observed: the host as the plan was made for it
    :param targets: as in :class:`move_promises.PendingMove`
    :param mover: :data:`history.APPLY`, :data:`history.UNDO` or :data:`history.PIN`
    :param wait_s: how long to wait for another process that moves guests [s]
    :param why_not: is called before each move, with a function to wait by, and returns why the
        move is not to be made any more; empty if it is
    :raises StateLocked: another process holds the move lock for longer
    """
    not_paying: list[tuple[str, str]] = []
    signal = None
    entries: list[history.HistoryEntry] = []
    batch = history.new_id()

    def record(entry: history.HistoryEntry) -> None:
        if entry.result != history.BEGUN:
            entries.append(entry)

    with take_move_lock(command, mover, wait_s) as turn, command.block_signals() as wait:

        def wait_in_turn(seconds: float) -> None:
            """Wait without losing the turn."""
            while seconds > 0:
                turn.renew()
                command.wait(min(seconds, move_lock.RENEW_S))
                seconds -= move_lock.RENEW_S

        log = logging.Logger('nova-numa-rebalance', logging.INFO)
        log.addHandler(_MessagePrinter())
        move_executor = executor.MoveExecutor(
            command.options,
            command.root,
            log,
            mover=mover,
            batch=batch,
            on_history_entry=record,
            kernel=command.kernel,
            turn=turn,
        )
        move_executor.pool = observed.pool
        try:
            for move in plan.moves:
                why = why_not(move, wait_in_turn)
                if why:
                    not_paying.append((move.name, why))
                    continue
                tried_count = len(entries)
                move_executor.enqueue(
                    plan_records.Plan((move,)), observed.host_promises.promises, targets
                )
                signal = _run(move_executor, wait)
                if signal or len(entries) == tried_count:  # it was dropped, which was logged
                    break
        except move_lock.TurnLost as error:
            log.warning('%s: its moves end', error)
        finally:
            move_executor.end_move()
    return MovesResult(
        batch, tuple(entries), len(plan.moves) - len(entries), tuple(not_paying), signal
    )


def _run(move_executor: executor.MoveExecutor, wait: Callable[[float], int | None]) -> int | None:
    """Make the moves; return the number of the signal that ended them early, or None."""
    while True:
        wait_s = move_executor.step()
        if wait_s is None:
            return None
        _show_progress(move_executor.in_progress)
        signal = wait(wait_s)
        if signal:
            return signal


def result_lines(result: MovesResult) -> list[str]:
    """Return how many moves were made, and why the others were not, as lines of text."""
    made_count = sum(entry.is_in_effect for entry in result.entries)
    moved_bytes = sum(entry.moved_bytes for entry in result.entries)
    counts = made_count, len(result.entries) + result.not_begun
    lines = ['%d of %d moves made, %s moved' % (*counts, tables.short_number(moved_bytes, 1024))]
    if result.signal:
        lines.append(
            'ended by signal %d: moves that were mostly done were kept, the others were undone'
            % result.signal
        )
    for entry in result.entries:
        if entry.result != history.DONE:
            lines.append('%s: %s: %s' % (entry.name, entry.result.replace('_', ' '), entry.why))
    lines += ['%s: not made: %s' % refusal for refusal in result.not_paying]
    if made_count:
        lines.append('to undo these moves: nova-numa-rebalance undo')
    return lines


def show_result(args: argparse.Namespace, result: MovesResult | None, **data: Any) -> None:
    """Print the result of the moves, if any were made, or with --json, all that was done.

    :param data: what else the JSON has
    """
    if result or args.json:
        outcome = to_data(result) if result else None
        tables.show(args.json, dict(data, outcome=outcome), result_lines(result) if result else ())


def to_data(result: MovesResult) -> dict[str, Any]:
    """Return a result as plain data."""
    return {
        'batch': result.batch,
        'entries': [to_json(entry) for entry in result.entries],
        'not_begun': result.not_begun,
        'not_paying': dict(result.not_paying),
        'signal': result.signal,
    }


def plan_lines(
    plan: plan_records.Plan,
    situation: plan_records.Situation,
    payback_s: float,
    observed: ObservedHost,
) -> list[str]:
    """Return a plan as lines of text.

    :param situation: the situation that the plan was made for
    :param payback_s: the time within which a move has to pay [s]
    :param observed: a host that was measured
    """
    assert observed.sample is not None
    lines = [
        'over %.3g s, source: %s: %s cores are lost%s'
        % (
            observed.sample.elapsed_s,
            printable(observed.sample.source) or 'none',
            tables.number(plan.loss_cores),
            ', %s after these moves:' % tables.number(plan.loss_after_cores) if plan.moves else '',
        )
    ]
    lines += [
        '%3d. %s' % (number, printable(explain_move(move)))
        for number, move in enumerate(plan.moves, 1)
    ]
    if not plan.moves:
        lines.append('nothing to move: no move would pay for itself within %g s' % payback_s)
    lines += [explain_remark(remark) for remark in plan.remarks]
    names_by_reason: dict[str, list[str]] = {}
    for guest in situation.guests:
        why = eligibility.TEXTS.get(guest.why_fixed)
        if why:
            names_by_reason.setdefault(why, []).append(guest.name)
    lines += [
        'left alone (%s): %s%s'
        % (
            why,
            printable(', '.join(names[:_NAMES_SHOWN])),
            ' and %d more' % (len(names) - _NAMES_SHOWN) if len(names) > _NAMES_SHOWN else '',
        )
        for why, names in sorted(names_by_reason.items())
    ]
    return lines


def plan_data(
    plan: plan_records.Plan, situation: plan_records.Situation, observed: ObservedHost
) -> dict[str, Any]:
    """Return a plan and the measurements behind it as plain data."""
    assert observed.sample is not None
    return {
        'taken_s': observed.sample.taken_s,
        'elapsed_s': observed.sample.elapsed_s,
        'source': observed.sample.source,
        'loss_cores': plan.loss_cores,
        'loss_after_cores': plan.loss_after_cores,
        'moves': [
            {
                'kind': move.kind,
                'uuid': move.uuid,
                'name': move.name,
                'from_nodes': move.from_nodes,
                'to_nodes': move.to_nodes,
                'mem_nodes': move.mem_nodes,
                'gain_cores': move.gain_cores,
                'cost_core_sec': move.cost_core_sec,
                'regret_core_sec': move.regret_core_sec,
                'bytes': move.to_move_bytes,
                'reasons': {reason.code: dict(reason.values) for reason in move.reasons},
                'text': explain_move(move),
            }
            for move in plan.moves
        ],
        'remarks': [explain_remark(remark) for remark in plan.remarks],
        'left_alone': {
            guest.uuid: guest.why_fixed for guest in situation.guests if guest.why_fixed
        },
        'problems': list(observed.problems),
    }


def require_answer(args: argparse.Namespace, command: CommandContext) -> None:
    """End the command unless --yes was given or an operator can be asked."""
    if not (args.yes or (command.on_terminal and not args.json)):
        args.parser.error('cannot ask for confirmation (no terminal, or --json): use --yes')


def is_confirmed(args: argparse.Namespace, command: CommandContext, question: str) -> bool:
    """Return whether --yes was given or the operator's answer is yes; end of input means no."""
    try:
        return args.yes or command.ask(question + ' [y/N] ').strip().lower() in ('y', 'yes')
    except EOFError:
        return False


def show_plan(command: CommandContext, args: argparse.Namespace, payback_s: float) -> bool:
    """Measure an interval and print the plan; return whether a move would pay.

    :param args: ``interval``, ``guest`` and ``json``
    """
    observed = command.measure(args.interval)
    plan, situation = command.propose(observed, payback_s, args.guest or ())
    tables.show(
        args.json,
        plan_data(plan, situation, observed),
        plan_lines(plan, situation, payback_s, observed),
        observed.problems,
    )
    return bool(plan.moves)
