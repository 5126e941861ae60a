# SPDX-License-Identifier: Apache-2.0
"""Keep a history of the moves of guests in a file that survives a reboot.

Each line is a JSON object with a schema version ``major.minor``, and a reader accepts any minor
version of its own major version. The file has the last :data:`ENTRIES_MAX` moves and is replaced
atomically. Writers hold a lock, because the turn at moving guests (:mod:`move_lock`) may pass to
another process while its holder hangs.

A move is written at its beginning, and again at its end, with the same id. If the process is
killed in between, the first entry remains: the guests are promised their new places, and part of
their memory may still be at the old ones.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values, model
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from nova_numa_pmc.core.rebalance import plan_records
    from nova_numa_pmc.json_values import Signed

DIRECTORY, FILE, LOCK = state_files.PERSISTENT, 'history', 'history.lock'
#: A writer holds the lock for milliseconds only.
_LOCK_TIMEOUT_S = 5.0
#: Number of moves that are kept: of some weeks, at ten a day.
ENTRIES_MAX = 500
#: In the third, a move could have several guests.
_MAJOR = 4
_SIZE_MAX_BYTES = 4 << 20
_TEXT_MAX = 1000
#: What moves guests: the agent or a command.
AGENT, APPLY, UNDO, PIN = 'agent', 'apply', 'undo', 'pin'
#: Results of a move: all of the memory has followed; most of it has; the move was undone; the
#: move was undone, but the memory that had moved stayed behind; it was not begun; it is in
#: progress, or its process was killed.
DONE, PARTLY, TAKEN_BACK = 'done', 'partly', 'taken_back'
SPLIT, REFUSED, BEGUN = 'split', 'refused', 'begun'


class PromisedPlace(Record):
    """Place that a guest is promised, with the fields of :class:`model.Promise`."""

    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...] = ()
    mem_node_bytes: tuple[int, ...] = ()
    origin: str = model.PLACED


class HistoryEntry(Record):
    """One move, recorded at its end or, with the result :data:`BEGUN`, at its beginning.

    :param id: 8 hexadecimal digits
    :param taken_s: CLOCK_REALTIME of the entry [s since the epoch]
    :param mover: :data:`AGENT`, :data:`APPLY`, :data:`UNDO` or :data:`PIN`
    :param batch: id that all moves of one command share; '' for the agent's moves
    :param kind: one of :data:`plan_records.KINDS`
    :param gain_cores, cost_core_sec: gain and cost as planned
    :param since_ns: ``since_ns`` of the guest's promise, which tells one start of a guest from the
        next; 0 if the move was not begun
    :param before, after: its place before and after the move; if the move was not begun, ``after``
        is the place that was planned, and the nodes of memory that would have stayed are left out
    :param moved_bytes: memory that was moved
    :param duration_s: how long the move took
    :param result: one of the above
    :param why: why it was made, or why it was not made or not completed
    """

    id: str
    taken_s: float
    mover: str
    batch: str
    kind: str
    uuid: str
    name: str
    since_ns: int
    before: PromisedPlace
    after: PromisedPlace
    gain_cores: Signed
    cost_core_sec: float
    moved_bytes: int
    duration_s: float
    result: str
    why: str = ''

    @property
    def is_in_effect(self) -> bool:
        """Return whether the move changed the guests' places and was not undone."""
        return self.result in (DONE, PARTLY, BEGUN)


def new_id() -> str:
    """Return an id for an entry or a batch."""
    return os.urandom(4).hex()


def place_of(promise: model.Promise) -> PromisedPlace:
    """Return the place in a promise."""
    return PromisedPlace(
        promise.cpu_nodes, promise.mem_nodes, promise.mem_node_bytes, promise.origin
    )


def append(entry: HistoryEntry, root: str = '/') -> None:
    """Append an entry, in place of the one that was written when the move began.

    :raises StateError: the directory or the file cannot be trusted or written
    """
    with (
        state_files.StateDirectory(os.path.join(root, DIRECTORY)) as directory,
        directory.lock(LOCK, _LOCK_TIMEOUT_S),
    ):
        entries, _ = _decode(directory.read(FILE, _SIZE_MAX_BYTES))
        entries = [each for each in entries if (each.id, each.result) != (entry.id, BEGUN)]
        lines = [json_values.encode(each, _MAJOR) for each in (*entries, entry)[-ENTRIES_MAX:]]
        directory.replace(FILE, b''.join(lines), durable=True)


def read(root: str = '/') -> tuple[list[HistoryEntry], int]:
    """Read all entries that are kept, the oldest first.

    :returns: (entries, number of lines that could not be parsed)
    :raises StateError: the file cannot be trusted or read
    """
    return _decode(state_files.read(os.path.join(root, DIRECTORY), FILE, _SIZE_MAX_BYTES))


def _decode(data: bytes | None) -> tuple[list[HistoryEntry], int]:
    entries, unreadable = [], 0
    for line in (data or b'').splitlines():
        try:
            entries.append(json_values.decode(HistoryEntry, line, _MAJOR))
        except ValueError:
            unreadable += 1
    return entries, unreadable


def new_entry(
    entry_id: str, move: plan_records.Move, mover: str, batch: str, result: str, why: str
) -> HistoryEntry:
    """Return the entry of a move that was not begun, as of now.

    :param entry_id: id from :func:`new_id`, the same at the beginning and the end of a move
    """
    return HistoryEntry(
        id=entry_id,
        taken_s=round(time.time(), 3),
        mover=mover,
        batch=batch,
        kind=move.kind,
        uuid=move.uuid,
        name=move.name,
        since_ns=0,
        before=PromisedPlace(move.from_nodes),
        after=PromisedPlace(move.to_nodes, move.mem_nodes),
        gain_cores=round(move.gain_cores, 3),
        cost_core_sec=round(move.cost_core_sec, 3),
        moved_bytes=0,
        duration_s=0.0,
        result=result,
        why=json_values.printable(why[:_TEXT_MAX]),
    )
