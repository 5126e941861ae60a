# SPDX-License-Identifier: Apache-2.0
"""Move a running guest to other nodes: its CPUs at once, then its memory in batches.

During the move, ``cpuset.mems`` keeps all nodes. Narrowing it would make the kernel move all of
the memory at once, in its one ordered queue, which every write to a cpuset or to cgroup.procs on
the host waits for. Instead, move_pages(2) moves the pages in batches, each as soon as the rate
limit allows it, and nothing is locked or pending between two batches. No progress is recorded
either: the work that remains is the memory that is still on other nodes, so an interrupted move is
resumed by starting it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.exceptions import GuestGone, PageMoveError
from nova_numa_pmc.host import cgroups, files, holding
from nova_numa_pmc.host.page_moves import node_room, process_pages
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    from nova_numa_pmc.host.cpusets import FileChange
    from nova_numa_pmc.host.page_moves.process_pages import MovedPages

#: States of a move. MOVING is the only one that is not final.
MOVING = 'moving'
DONE = 'done'  # almost no movable memory is left on other nodes
PARTLY = 'partly'  # some pages did not move; ``refused`` says why
FULL = 'full'  # the target nodes have no room for more, or memory is short
CANCELLED = 'cancelled'
#: {state: its text for operators}
TEXTS = {
    MOVING: 'in progress',
    DONE: 'done',
    PARTLY: 'some pages did not move',
    FULL: 'the nodes have no room for more',
    CANCELLED: 'cancelled',
}

_WALKS_MAX = 3  # passes over a guest's memory; a pass that moves nothing is the last
# The refused share that is ignored: QEMU shares a page or two with libvirt.
_REFUSED_IGNORED_MAX_RATIO = 0.01
_UNSEEN_MIN_RATIO = 0.25  # of what was to be moved; more than QEMU's own read-only pages
_REFUSED_RUN_MAX_BYTES = 64 << 20  # refused in a row: these pages are pinned, as are the rest
#: The longest time that a guest should wait for a page of a batch [s]. A batch that takes longer
#: is followed by one of half its size, and one that takes less than a quarter by a larger one.
STALL_MAX_S = 0.02
_FIRST_BATCH_BYTES = 2 << 20  # a transparent huge page, and the least that a batch has
#: How often room is checked for while there is none, how long a move rests once the kernel was
#: short of memory, and how long it waits for room before it ends [s] (assumed): guests may give
#: memory back.
_ROOM_CHECK_S, _REST_S, _ROOM_WAIT_MAX_S = 0.1, 1.0, 10.0
#: How long it holds that a guest may be moved on, unless 2 MiB have been moved before [s]: reading
#: the status file takes longer than moving one of the many small mappings of QEMU.
_ASK_AGAIN_S = 1.0
_CLOCK_STEP_S = 1e-6  # a shorter wait than the clock can resolve is a rounding error


class PageMoveLimits(Record):
    """Limits on moving a guest's memory.

    :param bytes_per_sec: the rate limit
    :param batch_bytes: the most memory that one step examines and moves, and that is moved before
        the room is looked at again. Each call makes every CPU
        of the host drain its cached pages (lru_cache_disable() in mm/swap.c), so a batch should
        not be too small; a cancellation waits for the current batch, and so does a guest that
        touches a page of it, so it should not be too large
    :param reserve_bytes: room to leave on a node
    :param stall_max_s: the longest time that a batch should take
    """

    bytes_per_sec: float = 256 << 20
    batch_bytes: int = page_choice.BATCH_BYTES
    reserve_bytes: int = 256 << 20
    stall_max_s: float = STALL_MAX_S


class Progress(Record):
    """Progress of a move.

    :param state: one of the constants above
    :param moved_bytes: bytes moved by this mover
    :param left_bytes: bytes that are still on other nodes; None if unknown. At the end they may
        include memory that QEMU has not mapped
    :param refused: pages that did not move in the last walk, as (errno's name, number of pages);
        :class:`process_pages.MovedPages` explains the names
    :param wait_s: time to wait before the next step, which does nothing if it is taken earlier
    :param left_at_first_bytes: ``left_bytes`` before the first walk
    :param why: why the move was cancelled; empty if nobody said so
    """

    state: str
    moved_bytes: int = 0
    left_bytes: int | None = None
    refused: tuple[tuple[str, int], ...] = ()
    wait_s: float = 0.0
    left_at_first_bytes: int | None = None
    why: str = ''

    @property
    def arrived_bytes(self) -> int:
        """Return the bytes that have arrived, moved by this mover or by NUMA balancing."""
        if self.left_bytes is None:
            return self.moved_bytes
        return max(self.moved_bytes, (self.left_at_first_bytes or 0) - self.left_bytes)

    @property
    def has_followed(self) -> bool:
        """Return whether at least half of the memory that was to be moved has been moved."""
        return self.state == DONE or (
            self.left_bytes is not None and self.arrived_bytes >= self.left_bytes
        )

    def __str__(self) -> str:
        left_text = (
            'an unknown amount'
            if self.left_bytes is None
            else ('%d MiB' % (self.left_bytes >> 20))
        )
        refused = ', '.join(
            '%d %s (%s)' % (count, process_pages.TEXTS.get(name, 'refused'), name)
            for name, count in self.refused
        )
        return '%s%s, %s left%s' % (
            TEXTS[self.state],
            ' (%s)' % self.why if self.why else '',
            left_text,
            '; pages: ' + refused if refused else '',
        )


class GuestMove:
    """The move of one guest, made one step at a time.

    Call ``step()`` until ``progress.state`` is no longer MOVING, and wait ``progress.wait_s``
    between two calls. An exception ends the move: GuestGone, PageMoveError, or, for the CPUs,
    CpusetError and PinnedByOthers, after which the CPU sets are as they were.

    :ivar progress: progress after the last step
    """

    def __init__(
        self,
        groups: cgroups.GuestGroups,
        mems: Collection[int],
        write_cpus: Callable[[], tuple[FileChange, ...]] = lambda: (),
        limits: PageMoveLimits | None = None,
        mem_node_bytes: Sequence[int] = (),
        root: str = '/',
        clock: Callable[[], float] = time.monotonic,
        kernel: KernelCalls = KERNEL_CALLS,
        why_not: Callable[[], str] = lambda: '',
    ) -> None:
        """Prepare a move; nothing is written yet.

        :param mems: ids of the nodes that the memory goes to; empty if it stays where it is
        :param write_cpus: writes the CPUs that the guest moves to, and returns the changes
        :param mem_node_bytes: bytes promised on each of ``mems``, by which the memory is divided
            among them; empty: in equal parts
        :param clock: function that returns monotonic time in seconds
        :param why_not: is called before each batch of 2 MiB or more, and once a second between
            smaller ones; returns why the guest may not be moved on, empty if it may
        :raises GuestGone: the guest has ended
        :raises PageMoveError: one of the nodes does not exist or has no memory
        """
        self._groups = groups
        self._root = root
        self._clock = clock
        self._kernel = kernel
        self._mems = tuple(mems)
        self._mem_node_bytes = tuple(mem_node_bytes)
        self._write_cpus = write_cpus
        self._why_not = why_not
        self._limits = limits or PageMoveLimits()
        self._batch_bytes = self._first_batch_bytes = min(
            self._limits.batch_bytes, _FIRST_BATCH_BYTES
        )
        self._changes: tuple[FileChange, ...] = ()
        self._is_cancelled = False
        self._refused: dict[str, int] = {}
        self._present_bytes: dict[int, int] = {}
        self._wanted_bytes: Mapping[int, int] = {}
        self._refused_bytes = 0  # in the current walk, like _refused
        self._shortages: int | None = None
        self._own_compactions = 0  # caused by allocating huge pages, which shows no shortage
        self._target_now: int | None = None  # the node that has room
        self._room_left_bytes = 0  # that may go there before its room is looked at again
        self._rests_until_s = float('-inf')
        self._ask_again_s = float('-inf')  # when to ask whether the guest may be moved on
        self._unasked_bytes = 0  # tried since this was asked
        self._next_batch_s = float('-inf')  # when the rate limit allows it
        self.progress = Progress(MOVING)
        self._steps = self._run()
        if self._mems:
            absent = sorted(set(self._mems).difference(node_room.read(root)))
            if absent:
                raise PageMoveError(
                    'there is no node %d with memory, so none can be moved there' % absent[0]
                )
            self._check_alive()
            self._pages = process_pages.PageMover(groups.pid, frozenset(self._mems), root, kernel)

    def step(self) -> Progress:
        """Move the next batch and return the progress."""
        next(self._steps, None)
        return self.progress

    def cancel(self, why: str = '') -> None:
        """End the move at the next step; memory that has been moved stays where it is."""
        if not self._is_cancelled:
            self.progress = self.progress._replace(why=why)
        self._is_cancelled = True

    def undo_cpus(self) -> None:
        """Undo this move's changes of the CPU sets.

        :raises GuestGone, CpusetError: as :func:`holding.undo` does
        """
        holding.undo(self._groups, self._changes, write=self._kernel.write)

    def _run(self) -> Iterator[None]:
        if not self._mems:
            self._changes = self._write_cpus()
            self.progress = Progress(DONE)
            return
        elsewhere_bytes = self._bytes_elsewhere()
        self.progress = self.progress._replace(
            left_bytes=elsewhere_bytes, left_at_first_bytes=elsewhere_bytes
        )
        state = CANCELLED
        if not self._is_cancelled:
            self._changes = self._write_cpus()
            yield
            state = yield from self._walk_until_done()
            if state == DONE and self._has_much_unseen_memory():
                state = PARTLY
        self.progress = self.progress._replace(
            state=state, left_bytes=self._bytes_elsewhere(), wait_s=0.0
        )

    def _has_much_unseen_memory(self) -> bool:
        """Return whether much memory is left that no walk has seen, and so none has refused."""
        self.progress = self.progress._replace(left_bytes=self._bytes_elsewhere())
        left_bytes = self.progress.left_bytes or 0
        return left_bytes > _UNSEEN_MIN_RATIO * (left_bytes + self.progress.arrived_bytes)

    def _walk_until_done(self) -> Generator[None, None, str]:
        state = DONE
        for _ in range(_WALKS_MAX):
            moved_before = self.progress.moved_bytes
            self._refused = {}
            self._refused_bytes = 0
            self.progress = self.progress._replace(left_bytes=self._bytes_elsewhere(), refused=())
            if self.progress.left_bytes == 0:
                return DONE
            self._present_bytes = cgroups.memory_by_node(self._groups.pid, self._root) or {}
            self._wanted_bytes = page_choice.wanted_bytes_by_node(
                self._mems, self._mem_node_bytes, sum(self._present_bytes.values())
            )
            state = yield from self._walk()
            if state != PARTLY or self.progress.moved_bytes == moved_before:
                break
        if (
            state == PARTLY
            and self._refused_bytes <= _REFUSED_IGNORED_MAX_RATIO * self.progress.moved_bytes
        ):
            return DONE
        return state

    def _walk(self) -> Generator[None, None, str]:
        """Go through the guest's memory once and return the resulting state."""
        refused_run_bytes = 0
        pagemap = process_pages.Pagemap(self._groups.pid, self._root)
        try:
            for mapping, start, end in self._windows():
                if not pagemap.any_present(start, end):
                    yield
                    continue
                target = yield from self._wait_for_target()
                if self._is_cancelled:
                    return CANCELLED
                if target is None:
                    return FULL
                moved = self._move(mapping, start, end, target, pagemap)
                refused_run_bytes = (
                    0 if moved.moved_bytes else refused_run_bytes + moved.refused_bytes
                )
                if refused_run_bytes >= _REFUSED_RUN_MAX_BYTES:
                    break
                yield
        finally:
            pagemap.close()
        return PARTLY if self._refused else DONE

    def _windows(self) -> Iterator[tuple[process_pages.Mapping, int, int]]:
        """Yield (mapping, start, end) of the ranges to look at, each as large as a batch."""
        for mapping in process_pages.read(self._groups.pid, self._root):
            end = mapping.start
            while end < mapping.end:
                start, size = end, self._batch_bytes
                end = min(mapping.end, (start // size + 1) * size)
                yield mapping, start, end

    def _wait_for_target(self) -> Generator[None, None, int | None]:
        """Wait until the next batch may be moved, and return the node that its pages go to.

        :returns: the node's id; None if all are and stay full, or the move was cancelled
        """
        deadline_s = None
        while not self._is_cancelled:
            now_s = self._clock()
            wait_s = self._next_batch_s - now_s
            if wait_s < _CLOCK_STEP_S:
                self._check_alive()
                if self._unasked_bytes >= self._first_batch_bytes or now_s >= self._ask_again_s:
                    self._unasked_bytes, self._ask_again_s = 0, now_s + _ASK_AGAIN_S
                    why = self._why_not()
                    if why:
                        self.cancel(why)
                        break
                if self._room_left_bytes <= 0:
                    self._target_now = self._target(now_s)
                    if self._target_now is not None:
                        self._room_left_bytes = self._limits.batch_bytes
                if self._target_now is not None:
                    self.progress = self.progress._replace(wait_s=0.0)
                    return self._target_now
                if deadline_s is None:
                    deadline_s = now_s + _ROOM_WAIT_MAX_S
                if now_s >= deadline_s:
                    break
                wait_s = _ROOM_CHECK_S
            self.progress = self.progress._replace(wait_s=wait_s)
            yield
        return None

    def _target(self, now_s: float) -> int | None:
        """Return the node that has room for the next batch, and lacks most of its share, if any.

        After the kernel has been short of memory, no node has room for a while.
        """
        shortages = node_room.read_shortages(self._root) - self._own_compactions
        if self._shortages is not None and shortages > self._shortages:
            self._rests_until_s = now_s + _REST_S
        self._shortages = shortages
        if now_s < self._rests_until_s:
            return None
        nodes = node_room.read(self._root)
        needed_bytes = self._limits.reserve_bytes + self._limits.batch_bytes
        return page_choice.next_target(
            self._wanted_bytes,
            self._present_bytes,
            [
                node
                for node in self._mems
                if node in nodes and nodes[node].room_bytes >= needed_bytes
            ],
        )

    def _move(
        self,
        mapping: process_pages.Mapping,
        start: int,
        end: int,
        target: int,
        pagemap: process_pages.Pagemap,
    ) -> MovedPages:
        compactions, began_s = self._compactions(), self._clock()
        moved = self._pages.move(mapping, start, end, target, pagemap)
        self._adapt_batch(moved, self._clock() - began_s)
        self._own_compactions += self._compactions() - compactions
        # The kernel has tried several times to move a refused page, so such pages count as well.
        tried_bytes = moved.moved_bytes + moved.refused_bytes
        self._next_batch_s = (
            max(self._next_batch_s, began_s) + tried_bytes / self._limits.bytes_per_sec
        )
        self._room_left_bytes -= tried_bytes
        self._unasked_bytes += tried_bytes
        self._present_bytes[target] = self._present_bytes.get(target, 0) + moved.moved_bytes
        self._refused_bytes += moved.refused_bytes
        for code, pages in moved.refused:
            self._refused[code] = self._refused.get(code, 0) + pages
        progress = self.progress
        left_bytes = progress.left_bytes
        self.progress = progress._replace(
            moved_bytes=progress.moved_bytes + moved.moved_bytes,
            wait_s=0.0,
            left_bytes=left_bytes and max(0, left_bytes - moved.moved_bytes),
            refused=tuple(sorted(self._refused.items())),
        )
        return moved

    def _compactions(self) -> int:
        return node_room.read_shortages(self._root, node_room.COMPACTION)

    def _adapt_batch(self, moved: MovedPages, took_s: float) -> None:
        """Halve the batch if it took too long, and double it if it can be larger."""
        if took_s > self._limits.stall_max_s:
            self._batch_bytes = max(self._batch_bytes // 2, self._first_batch_bytes)
        elif moved.moved_bytes and took_s < self._limits.stall_max_s / 4:
            self._batch_bytes = min(self._batch_bytes * 2, self._limits.batch_bytes)

    def _check_alive(self) -> None:
        ticks = process_pages.start_ticks(self._groups.pid, self._root)
        if files.ticks_ns(ticks) != self._groups.start_ns:
            raise GuestGone(
                '%s: the process has ended and its id has been reused' % self._groups.proc
            )

    def _bytes_elsewhere(self) -> int | None:
        bytes_by_node = cgroups.memory_by_node(self._groups.pid, self._root)
        return (
            None if bytes_by_node is None else cgroups.bytes_elsewhere(bytes_by_node, self._mems)
        )
