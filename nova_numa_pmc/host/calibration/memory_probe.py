# SPDX-License-Identifier: Apache-2.0
"""Measure the bandwidth and latency of a node's memory, with libc alone.

Nothing is compiled and no page is made executable, so it runs on every architecture and
under SELinux: the loops are functions that libc has, called without Python's lock.

* Bandwidth: ``memchr(3)`` for a byte that is not there, a read of every line at the speed of
  the CPU's widest loads, one thread on each core.
* Latency: ``tfind(3)`` down a tree whose every node has a right child only. A tree's node is
  {key, left, right}, in glibc and musl alike (:func:`_check_tree` makes sure of it), so a tree
  of our own making is a list of pointers in random order, each in a line of its own that was
  never read before: what Intel's Memory Latency Checker and lmbench's lat_mem_rd chase.
  The comparison is ``abs(3)`` of the key 1, always positive, and reads no memory.

Memory is put on its node by mbind(2) with MPOL_PREFERRED, as MPOL_BIND would have the OOM
killer called where the node is full, and get_mempolicy(2) is asked where it lies.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import platform
import random
import threading
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.core.pressure import LINE_BYTES
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import Self

#: Numbers of mbind and get_mempolicy.
_SYSCALLS = {
    'x86_64': (237, 239),
    'aarch64': (235, 236),
    'ppc64le': (259, 260),
    's390x': (268, 269),
    'riscv64': (235, 236),
}
_MPOL_PREFERRED, _MPOL_F_NODE_ADDR = 1, 3
_MADV_HUGEPAGE = 14

#: A chain has this many lines, each read once a pass: 13 ms at 100 ns.
CHAIN_LINES = 1 << 17
#: Lines are visited in random order within such a window, then in the next: few enough pages
#: for the TLB where huge pages are off.
_WINDOW_BYTES = 4 << 20
_PASSES, _RUNS, _RUN_S = 5, 3, 0.4
_CHAIN_BYTES, _CACHE_MAX_BYTES, _SLICE_MIN_BYTES = 256 << 20, 1 << 30, 8 << 20
_PAGES_CHECKED = 16

_libc = ctypes.CDLL(None, use_errno=True)
_pointer = ctypes.c_void_p
_libc.memchr.argtypes, _libc.memchr.restype = (_pointer, ctypes.c_int, ctypes.c_size_t), _pointer
for _name in ('tfind', 'tsearch'):
    getattr(_libc, _name).argtypes = (_pointer, _pointer, _pointer)
    getattr(_libc, _name).restype = _pointer
_ALWAYS_RIGHT = ctypes.cast(_libc.abs, _pointer)


class ProbeSizes(Record):
    """Sizes of the memory that is used.

    :param chain_bytes: over which a chain is spread
    :param flush_bytes: what is read before each pass, to push the chain out of the caches
    :param slice_bytes: what each thread reads for the bandwidth
    """

    chain_bytes: int
    flush_bytes: int
    slice_bytes: int

    def total_bytes(self, threads: int) -> int:
        """Return the most memory in use on a node at any time [bytes]."""
        return max(self.chain_bytes + self.flush_bytes, threads * self.slice_bytes)


def sizes(cache_bytes: int, node_cache_bytes: int, threads: int) -> ProbeSizes:
    """Return the sizes to use, given the sizes of a CPU's last-level cache and of a node's."""
    part = -(-4 * node_cache_bytes // threads)
    return ProbeSizes(
        _CHAIN_BYTES,
        _whole_pages(min(2 * cache_bytes, _CACHE_MAX_BYTES)),
        _whole_pages(max(_SLICE_MIN_BYTES, min(part, _CACHE_MAX_BYTES))),
    )


def _whole_pages(size: int) -> int:
    """Round up to huge pages of 2 MiB."""
    return -(-size // (2 << 20)) * (2 << 20)


class Memory:
    """Anonymous memory on a node, written once so that its pages are allocated.

    :param node: node id, None: wherever the kernel puts it (a host without NUMA)
    :raises CalibrationError: it cannot be allocated there
    """

    def __init__(self, size: int, node: int | None) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        try:
            self._map.madvise(_MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages
        self._view: ctypes.Array[ctypes.c_char] | None = (ctypes.c_char * size).from_buffer(
            self._map
        )
        self.address = ctypes.addressof(self._view)
        try:
            if node is not None:
                _prefer(self.address, size, node)
            ctypes.memset(self.address, 0, size)
            if node is not None:
                _check_node(self.address, size, node)
        except BaseException:
            self.close()
            raise

    def words(self) -> memoryview[int]:
        """Return the memory as writable 64-bit words; release the view before :meth:`close`."""
        return memoryview(self._map).cast('B').cast('Q')

    def close(self) -> None:
        """Free the memory."""
        self._view = None
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _syscall(which: int, *arguments: object) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise CalibrationError(
            'the system call number of mbind is unknown on %s' % platform.machine()
        )
    if _libc.syscall(ctypes.c_long(numbers[which]), *arguments) == 0:
        return
    code = ctypes.get_errno()
    why = os.strerror(code)
    if code in (errno.EPERM, errno.ENOSYS):
        why += "; a container's seccomp profile may forbid it: run on the host itself"
    raise CalibrationError('%s: %s' % (('mbind', 'get_mempolicy')[which], why))


def _prefer(address: int, size: int, node: int) -> None:
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << node % 64
    _syscall(
        0,
        _pointer(address),
        ctypes.c_ulong(size),
        ctypes.c_int(_MPOL_PREFERRED),
        words,
        ctypes.c_ulong(64 * len(words) + 1),
        ctypes.c_uint(0),
    )


def _check_node(address: int, size: int, node: int) -> None:
    for index in range(_PAGES_CHECKED):
        actual = ctypes.c_int(-1)
        _syscall(
            1,
            ctypes.byref(actual),
            None,
            ctypes.c_ulong(0),
            _pointer(address + size * index // _PAGES_CHECKED),
            ctypes.c_ulong(_MPOL_F_NODE_ADDR),
        )
        if actual.value != node:
            raise CalibrationError(
                'node %d does not have %d MiB free (the memory came from node %d): free memory '
                'on it, or drop the page cache' % (node, size >> 20, actual.value)
            )


def read_bytes_per_sec(
    cpus: Sequence[int],
    node: int | None,
    slice_bytes: int,
    runs: int = _RUNS,
    run_s: float = _RUN_S,
) -> float:
    """Return the bandwidth of a node's memory to threads on these CPUs; the best of some runs.

    :param cpus: one for each thread, one a core
    """
    memories: list[Memory] = []
    try:
        for _cpu in cpus:
            memories.append(Memory(slice_bytes, node))
        return max(_run_readers(cpus, memories, run_s) for _ in range(runs))
    finally:
        for memory in memories:
            memory.close()


def _run_readers(cpus: Sequence[int], memories: Sequence[Memory], run_s: float) -> float:
    start = threading.Barrier(len(cpus))
    rates = [0.0] * len(cpus)

    def read(index: int, memory: Memory) -> None:
        done = 0
        start.wait()
        began = time.perf_counter()
        passed = 0.0
        while passed < run_s:
            _libc.memchr(memory.address, 1, memory.size)
            done += memory.size
            passed = time.perf_counter() - began
        rates[index] = done / passed

    on_cpus(
        cpus, [functools.partial(read, index, memory) for index, memory in enumerate(memories)]
    )
    return sum(rates)


def on_cpus(cpus: Collection[int], jobs: Collection[Callable[[], object]]) -> None:
    """Run each job in a thread on its CPU; raise what one of them raised.

    :raises CalibrationError: a CPU may not be used by this process
    """
    failed: list[BaseException] = []

    def run(cpu: int, job: Callable[[], object]) -> None:
        try:
            os.sched_setaffinity(0, {cpu})  # 0 is the calling thread.
            job()
        except BaseException as error:
            failed.append(error)

    # Refused here, one thread would leave the others waiting at their barrier.
    beyond = set(cpus) - os.sched_getaffinity(0)
    if beyond:
        raise CalibrationError(
            'this process may not use CPU %d: run it where its cpuset has that CPU' % min(beyond)
        )
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(cpus, jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # if interrupted, they must not go on reading memory that is freed
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


class PointerChain:
    """A list of pointers in random order over a node's memory, and memory to push it out."""

    def __init__(
        self, node: int | None, chain_bytes: int, flush_bytes: int, lines: int = CHAIN_LINES
    ) -> None:
        _check_tree()
        self._memory: Memory | None = None
        self._flush: Memory | None = None
        try:
            self._memory = Memory(chain_bytes, node)
            self._flush = Memory(flush_bytes, node)
            offsets = order(chain_bytes, lines)
            self.lines = len(offsets)
            self._first = self._memory.address + offsets[0]
            with self._memory.words() as words:
                for here, there in zip(offsets, offsets[1:]):
                    words[here // 8 + 2] = self._memory.address + there
        except BaseException:
            self.close()
            raise

    def latency_ns(self, cpu: int, passes: int = _PASSES) -> float:
        """Return the time from one line to the next, from a CPU; the least of some passes.

        It is the thread's own CPU time, so that waiting for the CPU does not count.
        """
        times: list[int] = []
        flush = self._flush
        assert flush is not None, 'closed'

        def chase() -> None:
            for _ in range(passes):
                for _ in range(2):
                    _libc.memchr(flush.address, 1, flush.size)
                times.append(self._pass_ns())

        on_cpus([cpu], [chase])
        return min(times) / self.lines

    def _pass_ns(self) -> int:
        root = _pointer(self._first)
        began = time.thread_time_ns()
        _libc.tfind(_pointer(1), ctypes.byref(root), _ALWAYS_RIGHT)
        return time.thread_time_ns() - began

    def close(self) -> None:
        """Free the memory."""
        for memory in (self._memory, self._flush):
            if memory is not None:
                memory.close()
        self._memory = self._flush = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def order(size: int, lines: int, seed: int = 1) -> list[int]:
    """Return the offsets of a chain's lines in the order in which they are visited.

    Each equal part of the memory has one line, at a random place, so that a line fetched by the
    adjacent-line prefetcher is never used. The order is random within consecutive windows.
    """
    chance = random.Random(seed)
    stride = size // lines
    places = stride // LINE_BYTES
    per_window = max(1, min(lines, _WINDOW_BYTES // stride))
    offsets: list[int] = []
    for first in range(0, lines, per_window):
        window = list(range(first, min(first + per_window, lines)))
        chance.shuffle(window)
        offsets += [part * stride + LINE_BYTES * int(chance.random() * places) for part in window]
    return offsets


def _check_tree() -> None:
    """Make sure that a node of this libc's trees is {key, left, right}.

    :raises CalibrationError: it is not
    """
    root = _pointer()
    first = _libc.tsearch(_pointer(1), ctypes.byref(root), _ALWAYS_RIGHT)
    second = _libc.tsearch(_pointer(2), ctypes.byref(root), _ALWAYS_RIGHT)
    if first and second:
        parent, child = ((ctypes.c_size_t * 3).from_address(node) for node in (first, second))
        if (root.value, parent[0], parent[2], child[0], child[2]) == (first, 1, second, 2, 0):
            return
    raise CalibrationError(
        "this C library's tree (tsearch) is laid out in an unknown way: "
        'latencies cannot be measured with it; set latency_ns by hand'
    )
