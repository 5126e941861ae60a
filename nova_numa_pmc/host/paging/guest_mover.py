# SPDX-License-Identifier: Apache-2.0
"""Move a running guest to other nodes: its CPUs at once, then its memory bit by bit.

``cpuset.mems`` keeps all nodes meanwhile: narrowing it would let the kernel move everything in its
one ordered queue, which every cpuset and cgroup.procs write of the host waits for. Instead, pages
are moved by move_pages(2) in batches, each when the rate limit allows it; between two batches
nothing is locked or pending. Nothing is recorded either: the work left is the memory that lies
elsewhere, so an interrupted move is resumed by starting it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.core import page_choice
from nova_numa_pmc.core.token_bucket import TokenBucket
from nova_numa_pmc.exceptions import GuestGone, PageMoveError, PageMoveRefused
from nova_numa_pmc.host import cgroups, cpuset
from nova_numa_pmc.host.held import Cpuset
from nova_numa_pmc.host.paging import mappings, node_room
from nova_numa_pmc.host.paging.kernel_port import KERNEL, KernelPort
from nova_numa_pmc.host.paging.page_mover import PageMover
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping

    from nova_numa_pmc.host.paging.page_mover import MovedPages
    from nova_numa_pmc.host.writes import FileChange

#: States of a move. MOVING is the only one that is not final.
MOVING = 'moving'
DONE = 'done'  # next to no movable memory lies elsewhere
PARTLY = 'partly'  # pages would not move: ``refused`` says why
FULL = 'full'  # the nodes have no room for more
CANCELLED = 'cancelled'
FAILED = 'failed'  # an error was raised

_WALKS_MAX = 3  # most passes over a guest's memory; ends before if a pass moves nothing
_FEW_RATIO = 0.01  # refused share that is ignored: QEMU and libvirt share a page or two
_UNSEEN_MIN_RATIO = 0.25  # of what was to move: more than a QEMU's own read-only pages
_HOPELESS_BYTES = 64 << 20  # refused one after another: pinned, and so is the rest


class PagingLimits(Record):
    """Limits on moving a guest's memory.

    :param bytes_per_sec: the rate limit
    :param batch_bytes: what one step looks at, and moves at most. Each call makes all CPUs of
        the host give back the pages they hold (lru_cache_disable() in mm/swap.c), so not too
        little; a cancellation waits for one, so not too much
    :param reserve_bytes: available memory that is left on a node
    """

    bytes_per_sec: float = 256 << 20
    batch_bytes: int = page_choice.BATCH_BYTES
    reserve_bytes: int = 256 << 20


class Progress(Record):
    """Progress of a move.

    :param state: one of the constants above
    :param moved_bytes: bytes moved by this mover
    :param left_bytes: bytes that still lie elsewhere; None: unknown. At the end they may include
        memory that QEMU has not mapped
    :param refused: (errno's name, pages) that did not move in the last walk;
        :class:`page_mover.MovedPages` explains the names
    :param elapsed_s: since the first step
    :param wait_s: how long to wait before the next step; an earlier step does nothing [s]
    :param left_at_first_bytes: ``left_bytes`` before the first walk
    """

    state: str
    moved_bytes: int = 0
    left_bytes: int | None = None
    refused: tuple[tuple[str, int], ...] = ()
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    left_at_first_bytes: int | None = None

    @property
    def brought_bytes(self) -> int:
        """Return the bytes that arrived: moved by this mover, or meanwhile by NUMA balancing."""
        if self.left_bytes is None:
            return self.moved_bytes
        return max(self.moved_bytes, (self.left_at_first_bytes or 0) - self.left_bytes)


class GuestMove:
    """One guest's move, a step at a time.

    ``step()`` until ``progress.state`` is not MOVING any more; wait ``wait_s`` between two.
    Whatever it raises ends the move: GuestGone, CpusetError and PinnedByOthers (of the
    CPUs: what was written is undone), PageMoveError.

    :ivar progress: after the last step
    :ivar applied: of the CPUs, None: not yet
    """

    def __init__(
        self,
        groups: cgroups.GuestGroups,
        mems: Collection[int],
        cpus: frozenset[int] | None = None,
        ours: Cpuset | None = None,
        limits: PagingLimits | None = None,
        root: str = '/',
        clock: Callable[[], float] = time.monotonic,
        port: KernelPort = KERNEL,
    ) -> None:
        """Prepare a move; nothing is written yet.

        :param mems: node ids that the memory goes to, not empty
        :param cpus: for its CPUs, None: they stay, and ``cpuset.mems`` is not
            written either unless ``ours`` has them
        :param ours: what the hook or an earlier move left: what may be changed
        :param clock: returns seconds that never go back
        :raises GuestGone: it has ended
        :raises PageMoveError: a node has no memory
        """
        if not mems:
            raise PageMoveError('%s: no node was requested' % groups.target)
        self._groups, self._root, self._clock, self._port = groups, root, clock, port
        self._mems, self._cpus = tuple(mems), cpus
        self._ours = ours or Cpuset(frozenset(), frozenset())
        self._limits = limits or PagingLimits()
        for node in self._mems:
            node_room.available_bytes(node, root)
        self._since = mappings.start_ticks(groups.pid, root)
        self._pages = PageMover(groups.pid, frozenset(self._mems), root, port)
        self._cancelled = False
        self._began_s: float | None = None
        self._refused: dict[str, int] = {}
        self._present: dict[int, int] = {}
        self._wanted: Mapping[int, int] = {}
        self._refused_bytes = 0  # in the current walk, as is _refused
        self.applied: cpuset.HoldResult | None = None
        self.progress = Progress(MOVING)
        self._steps = self._run()

    def step(self) -> Progress:
        """Move the next batch."""
        if self._began_s is None:
            self._began_s = self._clock()
        try:
            next(self._steps, None)
        except BaseException:
            self._report(self.progress._replace(state=FAILED, wait_s=0.0))
            raise
        return self.progress

    def cancel(self) -> None:
        """End the move with the next step; what is moved stays where it is."""
        self._cancelled = True

    def undo_cpus(self) -> tuple[FileChange, ...]:
        """Restore the CPU sets from before this move.

        :raises GuestGone, CpusetError: as :func:`cpuset.undo`
        """
        return cpuset.undo(
            self._groups, self.applied.changes if self.applied else (), write=self._port.write
        )

    def _run(self) -> Iterator[None]:
        off_bytes = self._off_bytes()
        self._report(self.progress._replace(left_bytes=off_bytes, left_at_first_bytes=off_bytes))
        state = CANCELLED
        if not self._cancelled:
            self._hold_cpus()
            yield
            try:
                state = yield from self._walk_until_done()
            except PageMoveRefused:
                if not self._is_little():
                    raise
                state = self._narrow()
            if state == DONE and self._much_is_unseen():
                state = PARTLY
        self._report(self.progress._replace(state=state, left_bytes=self._off_bytes(), wait_s=0.0))

    def _much_is_unseen(self) -> bool:
        """Return whether much memory stayed that no walk has seen, and so was not refused."""
        self._report(self.progress._replace(left_bytes=self._off_bytes()))
        left_bytes = self.progress.left_bytes or 0
        return left_bytes > _UNSEEN_MIN_RATIO * (left_bytes + self.progress.brought_bytes)

    def _hold_cpus(self) -> None:
        if self._cpus:
            self.applied = cpuset.hold(
                self._groups, self._cpus, ours=self._ours, write=self._port.write
            )
            self._ours = self._ours._replace(cpus=self._cpus)
        if self._ours.mems:  # a guest bound to other nodes gets no pages here
            cpuset.release_memory(self._groups, self._ours.mems, write=self._port.write)
            self._ours = self._ours._replace(mems=frozenset())

    def _walk_until_done(self) -> Generator[None, None, str]:
        bucket = TokenBucket(self._limits.bytes_per_sec, self._limits.batch_bytes, self._clock())
        state = DONE
        for _ in range(_WALKS_MAX):
            moved_before = self.progress.moved_bytes
            self._refused, self._refused_bytes = {}, 0
            self._report(self.progress._replace(left_bytes=self._off_bytes(), refused=()))
            if self.progress.left_bytes == 0:
                return DONE
            self._present = cgroups.memory_by_node(self._groups) or {}
            self._wanted = page_choice.shares(self._mems, (), sum(self._present.values()))
            state = yield from self._walk(bucket)
            if state != PARTLY or self.progress.moved_bytes == moved_before:
                break
        if state == PARTLY and self._refused_bytes <= _FEW_RATIO * self.progress.moved_bytes:
            return DONE
        return state

    def _walk(self, bucket: TokenBucket) -> Generator[None, None, str]:
        """Go through the guest's memory once; return the state it leaves."""
        hopeless_bytes = 0
        presence = mappings.Presence(self._groups.pid, self._root)
        try:
            for mapping, start, end in self._windows():
                wait_s = bucket.wait_s(self._clock())
                while wait_s and not self._cancelled:
                    self._report(self.progress._replace(wait_s=wait_s))
                    yield
                    wait_s = bucket.wait_s(self._clock())
                self._report(self.progress._replace(wait_s=0.0))
                if self._cancelled:
                    return CANCELLED
                self._check_alive()
                if not presence.any(start, end):
                    yield
                    continue
                target = self._target()
                if target is None:
                    return FULL
                moved = self._move(bucket, mapping, start, end, target, presence)
                hopeless_bytes = 0 if moved.moved_bytes else hopeless_bytes + moved.refused_bytes
                if hopeless_bytes >= _HOPELESS_BYTES:
                    break
                yield
        finally:
            presence.close()
        return PARTLY if self._refused else DONE

    def _windows(self) -> Iterator[tuple[mappings.Mapping, int, int]]:
        for mapping in mappings.read(self._groups.pid, self._root):
            for start, end in page_choice.windows(
                mapping.start, mapping.end, self._limits.batch_bytes
            ):
                yield mapping, start, end

    def _target(self) -> int | None:
        room_bytes = self._limits.reserve_bytes + self._limits.batch_bytes
        return page_choice.next_target(
            self._wanted,
            self._present,
            [
                node
                for node in self._mems
                if node_room.available_bytes(node, self._root) >= room_bytes
            ],
        )

    def _move(
        self,
        bucket: TokenBucket,
        mapping: mappings.Mapping,
        start: int,
        end: int,
        target: int,
        presence: mappings.Presence,
    ) -> MovedPages:
        moved = self._pages.move(mapping, start, end, target, presence)
        # Pages that did not move were tried several times, and count, too.
        bucket.spend(moved.moved_bytes + moved.refused_bytes, self._clock())
        self._present[target] = self._present.get(target, 0) + moved.moved_bytes
        self._refused_bytes += moved.refused_bytes
        for code, pages in moved.refused:
            self._refused[code] = self._refused.get(code, 0) + pages
        progress = self.progress
        left_bytes = progress.left_bytes
        self._report(
            progress._replace(
                moved_bytes=progress.moved_bytes + moved.moved_bytes,
                wait_s=0.0,
                left_bytes=left_bytes and max(0, left_bytes - moved.moved_bytes),
                refused=tuple(sorted(self._refused.items())),
            )
        )
        return moved

    def _is_little(self) -> bool:
        off_bytes = self._off_bytes()
        return (
            off_bytes is not None
            and off_bytes <= cpuset.BRING_OVER_LIMIT_BYTES
            and bool(self._ours.cpus)
        )

    def _narrow(self) -> str:
        """Move a small rest by writing ``cpuset.mems``, where move_pages(2) is denied."""
        off_bytes = self._off_bytes() or 0
        written = cpuset.hold(
            self._groups,
            self._ours.cpus,
            frozenset(self._mems),
            ours=self._ours,
            huge_by_node={},
            write=self._port.write,
        )
        left_bytes = written.left_bytes or 0
        progress = self.progress
        self._report(
            progress._replace(moved_bytes=progress.moved_bytes + max(0, off_bytes - left_bytes))
        )
        return PARTLY if left_bytes else DONE

    def _check_alive(self) -> None:
        if mappings.start_ticks(self._groups.pid, self._root) != self._since:
            raise GuestGone(
                '%s: the process has ended and its id has been reused' % self._groups.proc
            )

    def _off_bytes(self) -> int | None:
        by_node = cgroups.memory_by_node(self._groups)
        return None if by_node is None else cgroups.bytes_off(by_node, self._mems)

    def _report(self, progress: Progress) -> None:
        elapsed_s = 0.0 if self._began_s is None else max(0.0, self._clock() - self._began_s)
        self.progress = progress._replace(elapsed_s=elapsed_s)
