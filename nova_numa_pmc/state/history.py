# SPDX-License-Identifier: Apache-2.0
"""Keep a history of the moves of guests in a file that survives a reboot.

Each line is a JSON object with a schema version ``major.minor``, and a reader accepts any minor
version of its own major version. A line is appended by a single write(2), so that a crash or a
full file system costs at most one line. At about 1 MiB, the file is renamed to ``history.1``,
replacing the previous one. Writers hold a lock, because the turn at moving guests
(:mod:`move_lock`) may pass to another process while its holder hangs.

A move has two lines with the same id, one for its beginning and one for its end. If the process is
killed in between, the first line remains valid: the guests are promised their new places, and part
of their memory may still be at the old ones.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import DomainError, StateError
from nova_numa_pmc.host import domain_xml
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.json_values import Signed

DIRECTORY, FILE, LOCK = state_files.PERSISTENT, 'history', 'history.lock'
#: A writer holds the lock for milliseconds only.
_LOCK_TIMEOUT_S = 5.0
ROTATE_BYTES = 1 << 20
_MAJOR = 2
_SIZE_MAX_BYTES = 4 << 20
_LINE_MAX_BYTES = 1 << 16
_TEXT_MAX = 1000
#: What moves guests: the agent or a command.
AGENT, APPLY, UNDO, PIN = 'agent', 'apply', 'undo', 'pin'
#: Results of a move: all of the memory has followed; most of it has; the move was undone; the
#: move was undone, but the memory that had moved stayed behind; it was not begun; it is in
#: progress, or its process was killed.
DONE, PARTLY, TAKEN_BACK, SPLIT, REFUSED, BEGUN = RESULTS = (
    'done',
    'partly',
    'taken_back',
    'split',
    'refused',
    'begun',
)


class PromisedPlace(Record):
    """Place that a guest is promised, with the fields of :class:`model.Promise`."""

    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...] = ()
    mem_node_bytes: tuple[int, ...] = ()
    origin: str = model.PLACED


class HistoryPart(Record):
    """Part of a recorded move: what it did to one guest.

    :param since_ns: ``since_ns`` of its promise, which tells one start of a guest from the next
    :param before, after: its place before and after the move; if the move was not begun, ``after``
        is the place that was planned, and the nodes of memory that would have stayed are left out
    """

    uuid: str
    name: str
    since_ns: int
    before: PromisedPlace
    after: PromisedPlace
    moved_bytes: int = 0


class HistoryEntry(Record):
    """One move, recorded at its end or, with the result :data:`BEGUN`, at its beginning.

    :param id: 8 hexadecimal digits
    :param taken_s: CLOCK_REALTIME of the entry [s since the epoch]
    :param mover: :data:`AGENT`, :data:`APPLY`, :data:`UNDO` or :data:`PIN`
    :param batch: id that all moves of one command share; '' for the agent's moves
    :param kind: one of :data:`plan_records.KINDS`
    :param gain_cores, cost_core_sec: gain and cost as planned
    :param moved_bytes: total of all parts
    :param duration_s: how long the move took
    :param result: one of :data:`RESULTS`
    :param why: why it was made, or why it was not made or not completed
    """

    id: str
    taken_s: float
    mover: str
    batch: str
    kind: str
    parts: tuple[HistoryPart, ...]
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
    """Append an entry.

    :raises StateError: the directory or the file cannot be trusted
    :raises OSError: the file cannot be written
    """
    line = encode(entry)
    with (
        state_files.StateDirectory(os.path.join(root, DIRECTORY)) as directory,
        directory.lock(LOCK, _LOCK_TIMEOUT_S),
    ):
        size, torn = _end(directory)
        if size and size + len(line) > ROTATE_BYTES:
            os.rename(FILE, FILE + '.1', src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        elif torn:
            line = b'\n' + line
        fd = os.open(
            FILE,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o644,
            dir_fd=directory.fd,
        )
        with state_files.OpenFile(fd):
            os.fchmod(fd, 0o644)  # regardless of the umask, as any user may read the history
            if os.write(fd, line) < len(line):
                raise StateError(
                    '%s: its file system is full' % os.path.join(directory.path, FILE)
                )


def _end(directory: state_files.StateDirectory) -> tuple[int, bool]:
    """Return (size [bytes], whether the last line is torn) of the history file.

    :raises StateError: the file cannot be trusted or opened
    """
    opened = directory.open(FILE, _SIZE_MAX_BYTES)
    if opened is None:
        return 0, False
    file, size = opened
    with file:
        return size, bool(size) and os.pread(file.fd, 1, size - 1) != b'\n'


def read(root: str = '/') -> tuple[list[HistoryEntry], int]:
    """Read all entries that are kept, the oldest first; only the last line of each move counts.

    :returns: (entries, number of lines that could not be parsed)
    :raises StateError: a file cannot be trusted or read
    """
    directory = os.path.join(root, DIRECTORY)
    texts = [
        state_files.read(directory, name, _SIZE_MAX_BYTES) or b'' for name in (FILE + '.1', FILE)
    ]
    entries: list[HistoryEntry] = []
    begun: dict[str, int] = {}  # {id of a move: index of its entry}
    unreadable = 0
    for line in b'\n'.join(texts).split(b'\n'):
        if line:
            try:
                entry = decode(line)
            except ValueError:
                unreadable += 1
                continue
            if entry.id in begun:
                entries[begun.pop(entry.id)] = entry
            else:
                entries.append(entry)
            if entry.result == BEGUN:
                begun[entry.id] = len(entries) - 1
    return entries, unreadable


def encode(entry: HistoryEntry) -> bytes:
    """Return an entry as a line of the file."""
    return json_values.encode(entry, _MAJOR)


def decode(line: bytes) -> HistoryEntry:
    """Return the entry in a line of the file.

    :raises ValueError: the line is malformed; the message has the reason
    """
    if len(line) > _LINE_MAX_BYTES:
        raise ValueError('too long')
    entry = json_values.decode(HistoryEntry, line, _MAJOR)
    if entry.kind not in plan_records.KINDS or entry.result not in RESULTS or not entry.parts:
        raise ValueError('an entry without guests, or of an unknown kind or result')
    for part in entry.parts:
        if not {part.before.origin, part.after.origin} <= model.ORIGIN_TEXTS.keys():
            raise ValueError('unknown origin of a place')
        try:
            domain_xml.parse_uuid(part.uuid)
            domain_xml.parse_name(part.name)
        except DomainError as error:
            raise ValueError('%s' % error) from None
    if not (entry.id + entry.mover + entry.batch + entry.why).isprintable():
        raise ValueError('unprintable characters')
    return entry


def new_entry(
    entry_id: str,
    move: plan_records.Move,
    parts: Iterable[HistoryPart],
    mover: str,
    batch: str,
    duration_s: float,
    result: str,
    why: str,
) -> HistoryEntry:
    """Return the entry of a move and its result, as of now.

    :param entry_id: id from :func:`new_id`, the same at the beginning and the end of a move
    :param parts: parts of the move; empty if it was not begun
    :param duration_s: how long the move took
    """
    parts = tuple(parts) or tuple(
        HistoryPart(
            part.uuid,
            part.name,
            0,
            PromisedPlace(tuple(part.from_nodes)),
            PromisedPlace(tuple(part.to_nodes), tuple(part.mem_nodes)),
        )
        for part in move.parts
    )
    return HistoryEntry(
        id=entry_id,
        taken_s=round(time.time(), 3),
        mover=mover,
        batch=batch,
        kind=move.kind,
        parts=parts,
        gain_cores=round(move.gain_cores, 3),
        cost_core_sec=round(move.cost_core_sec, 3),
        moved_bytes=sum(part.moved_bytes for part in parts),
        duration_s=round(max(0.0, duration_s), 3),
        result=result,
        why=json_values.printable(why[:_TEXT_MAX]),
    )
