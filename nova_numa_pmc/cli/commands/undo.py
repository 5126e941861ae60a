# SPDX-License-Identifier: Apache-2.0
"""Undo the moves of the last command, or one move from the history.

Guests that have not been restarted since the move, and are still where it left them,
are moved back with their memory; the others are listed and left alone. An undo can
itself be undone.
To undo one of the agent's moves, use --move; the agent may repeat the move once it pays
again, unless the guest is pinned or the agent is paused.

examples:
  nova-numa-rebalance undo
  nova-numa-rebalance undo --yes --json
  nova-numa-rebalance history --last 5
  nova-numa-rebalance undo --move 5f1c09ab

exit codes: 0 everything was undone; 2 you said no; 3 some moves were undone; 1 a
problem, nothing was undone; 64 usage error, such as no --yes where the command cannot ask
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, moves
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.core.rebalance.plan_records import explain_move
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import history

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc import model


class UndoError(NumaPmcError):
    """The history has no move that can be undone."""


class UndoPlan(Record):
    """Moves that undo earlier ones.

    :param targets: {uuid of a guest: its promise after the undo}
    :param left_alone: (name of a guest that is left alone, why)
    """

    plan: plan_records.Plan
    targets: dict[str, model.Promise]
    left_alone: tuple[tuple[str, str], ...]


OPTIONS = (
    arguments.option('--move', metavar='ID', help='undo only this move from the history'),
    arguments.YES,
    arguments.WAIT,
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Show what would be undone, ask, undo it, and return the exit code."""
    command = command or context.CommandContext(args.root)
    moves.require_answer(args, command)
    command.require_root()
    entries, _ = history.read(command.root)
    observed = command.read_host(write_promises=True)
    undo = plan_undo(
        entries_to_undo(entries, args.move), observed.guests, observed.host_promises.promises
    )
    if not args.json:
        for move in undo.plan.moves:
            print(printable(explain_move(move)))
        for name, why in undo.left_alone:
            print(printable('%s: left alone: %s' % (name, why)))
    result = None
    if undo.plan.moves:
        if not moves.is_confirmed(args, command, 'undo these moves?'):
            return arguments.NOT_MADE
        result = moves.make_moves(
            command, undo.plan, observed, history.UNDO, args.wait, undo.targets
        )
    moves.show_result(args, result, left_alone=dict(undo.left_alone))
    if result is None:
        return arguments.PROBLEM
    is_partly = undo.left_alone and result.exit_code == arguments.OK
    return arguments.PARTLY if is_partly else result.exit_code


def entries_to_undo(
    entries: list[history.HistoryEntry], move_id: str | None = None
) -> list[history.HistoryEntry]:
    """Return the entries to undo: those of the last command that moved guests, or a single one.

    :param entries: the history, the oldest entry first
    :param move_id: id of the single entry; None: the last command's entries
    :raises UndoError: there is no such entry, or its move was not made or was undone at once
    """
    if move_id is not None:
        matching = [entry for entry in entries if entry.id == move_id]
        if not matching:
            raise UndoError(
                'no move %.40r in the history: see "nova-numa-rebalance history"' % move_id
            )
        if not _can_be_undone(matching[-1]):
            raise UndoError(
                'move %s was not made, or was undone at once: %s' % (move_id, matching[-1].why)
            )
        return matching[-1:]
    of_commands = [entry for entry in entries if entry.batch and _can_be_undone(entry)]
    if not of_commands:
        raise UndoError(
            'nothing to undo: no command has moved guests; "nova-numa-rebalance history" shows '
            "the agent's moves, and undo --move ID undoes one of them"
        )
    return [entry for entry in of_commands if entry.batch == of_commands[-1].batch]


def _can_be_undone(entry: history.HistoryEntry) -> bool:
    """Return whether a move has left guests or memory elsewhere than before."""
    return entry.is_in_effect or entry.result == history.SPLIT


def plan_undo(
    entries: Sequence[history.HistoryEntry],
    running: Iterable[model.Guest],
    promised: Mapping[str, model.Promise],
) -> UndoPlan:
    """Plan to move guests back to where they were before some moves.

    Guests that have ended, been restarted or been moved again since then are left alone, and so
    are those that the operator has pinned or ignored.

    :param entries: the moves, as :func:`entries_to_undo` returns them
    :param promised: {uuid of a guest: its current promise}
    """
    guests = {guest.uuid: guest for guest in running}
    undone, left_alone = [], []
    targets: dict[str, model.Promise] = {}
    for entry in reversed(entries):
        promise = promised.get(entry.uuid)
        if entry.result == history.SPLIT:  # the guest is back, but not all of its memory
            entry = entry._replace(after=entry.before)
        why = _why_left(entry, guests.get(entry.uuid), promise)
        if why or promise is None or entry.uuid in targets:
            left_alone.append((entry.name, why or 'it has already been undone'))
            continue
        targets[entry.uuid] = promise._replace(**entry.before._asdict())
        undone.append(_reverse_move(entry))
    return UndoPlan(plan_records.Plan(tuple(undone)), targets, tuple(left_alone))


def _why_left(
    entry: history.HistoryEntry, guest: model.Guest | None, promise: model.Promise | None
) -> str:
    """Return why a guest is left alone, or '' if it can be moved back."""
    if guest is None or promise is None:
        return 'it has ended'
    if promise.since_ns != entry.since_ns:
        return 'it has been restarted since'
    if history.place_of(promise) != entry.after:
        return 'it has been promised another place since'
    if entry.before == entry.after and not (entry.moved_bytes and entry.before.mem_nodes):
        return 'the move did not change its place'
    if guest.override:
        return (
            '%s: "pin --off" ends that'
            % eligibility.TEXTS[eligibility.why_not(eligibility.PROCEED, guest)]
        )
    return ''


def _reverse_move(entry: history.HistoryEntry) -> plan_records.Move:
    before, after = entry.before, entry.after
    moves_memory = bool(before.cpu_nodes) and (
        before.mem_nodes != after.mem_nodes or before == after
    )
    mem_nodes = before.mem_nodes if moves_memory else ()
    is_fetch = before.cpu_nodes == after.cpu_nodes and bool(mem_nodes)
    return plan_records.Move(
        plan_records.FETCH if is_fetch else plan_records.MOVE,
        entry.uuid,
        entry.name,
        after.cpu_nodes,
        before.cpu_nodes,
        mem_nodes,
        entry.moved_bytes if moves_memory else 0,
        'as before move %s' % entry.id,
    )
