# SPDX-License-Identifier: Apache-2.0
"""Measure the bandwidth and latency of a node's memory, using only libc.

Nothing is compiled and no page is made executable, so this runs on every architecture and
under SELinux. The loops are functions of libc, which are called without Python's global lock.

* Bandwidth: ``memchr(3)`` searches for a byte that does not occur, and so reads every line at the
  speed of the CPU's widest loads, in one thread on each core.
* Latency: ``tfind(3)`` descends a tree in which every node has only a right child. A tree's node
  is {key, left, right} in both glibc and musl (:func:`_check_tree` verifies this), so we can build
  a tree that is a list of pointers in random order, each in a line of its own that has not been
  read before. Intel's Memory Latency Checker and lmbench's lat_mem_rd follow such a list as well.
  The comparison function is ``abs(3)`` of the key 1, which is always positive and reads no memory.

Memory is put on its node by mbind(2) with MPOL_PREFERRED, because MPOL_BIND would invoke the OOM
killer if the node is full; get_mempolicy(2) then tells where the memory is.
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
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.host import system_calls
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


_MPOL_PREFERRED = 1
_MPOL_F_NODE_ADDR = 3
_MADV_HUGEPAGE = 14

#: Lines of a chain, each of which is read once in a pass: 13 ms at 100 ns.
CHAIN_LINES = 1 << 17
#: Lines are visited in random order within one window after the other. A window has few enough
#: pages for the TLB even without huge pages.
_WINDOW_BYTES = 4 << 20
_PASSES = 5
_RUNS = 3
_RUN_S = 0.4
_CHAIN_BYTES = 256 << 20
_CACHE_MAX_BYTES = 1 << 30
_SLICE_MIN_BYTES = 8 << 20
_PAGES_CHECKED = 16
#: Time in which each thread must have started on its CPU [s].
_START_TIMEOUT_S = 10.0

_libc = ctypes.CDLL(None)
_pointer = ctypes.c_void_p
_libc.memchr.argtypes = (_pointer, ctypes.c_int, ctypes.c_size_t)
_libc.memchr.restype = _pointer
for _name in ('tfind', 'tsearch'):
    getattr(_libc, _name).argtypes = (_pointer, _pointer, _pointer)
    getattr(_libc, _name).restype = _pointer
_ALWAYS_RIGHT = ctypes.cast(_libc.abs, _pointer)


class ProbeSizes(Record):
    """Sizes of the memory to be used.

    :param chain_bytes: memory that a chain is spread over
    :param flush_bytes: memory that is read before each pass, to evict the chain from the caches
    :param slice_bytes: memory that each thread reads to measure the bandwidth
    """

    chain_bytes: int
    flush_bytes: int
    slice_bytes: int

    def total_bytes(self, threads: int) -> int:
        """Return the most memory that is in use on a node at a time [bytes]."""
        return max(self.chain_bytes + self.flush_bytes, threads * self.slice_bytes)


def probe_sizes(cache_bytes: int, node_cache_bytes: int, threads: int) -> ProbeSizes:
    """Return the sizes of the memory to use.

    :param cache_bytes: size of a CPU's last-level cache
    :param node_cache_bytes: total size of a node's last-level caches
    :param threads: number of threads that measure the bandwidth
    """
    slice_bytes = -(-4 * node_cache_bytes // threads)
    return ProbeSizes(
        _CHAIN_BYTES,
        _whole_pages(min(2 * cache_bytes, _CACHE_MAX_BYTES)),
        _whole_pages(max(_SLICE_MIN_BYTES, min(slice_bytes, _CACHE_MAX_BYTES))),
    )


def _whole_pages(size: int) -> int:
    """Round a size in bytes up to whole huge pages of 2 MiB."""
    return -(-size // (2 << 20)) * (2 << 20)


class Memory:
    """Anonymous memory on a node, which is written once so that its pages are allocated.

    :param size: size in bytes
    :param node: node id; None for wherever the kernel puts it (a host without NUMA)
    :raises CalibrationError: the memory cannot be allocated on the node
    """

    def __init__(self, size: int, node: int | None) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        try:
            self._map.madvise(_MADV_HUGEPAGE)
        except OSError:
            pass  # the kernel has no transparent huge pages
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


def _call(name: str, *arguments: object) -> None:
    number = system_calls.number_of(name)
    if number is None:
        raise CalibrationError(
            'the system call number of %s is unknown on %s' % (name, platform.machine())
        )
    try:
        system_calls.call(number, *arguments)
    except OSError as error:
        remedy = (
            "; a container's seccomp profile may forbid it: run on the host itself"
            if error.errno in (errno.EPERM, errno.ENOSYS)
            else ''
        )
        raise CalibrationError('%s: %s%s' % (name, error.strerror, remedy))


def _prefer(address: int, size: int, node: int) -> None:
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << node % 64
    _call('mbind', address, size, _MPOL_PREFERRED, words, 64 * len(words) + 1, 0)


def _check_node(address: int, size: int, node: int) -> None:
    for index in range(_PAGES_CHECKED):
        actual = ctypes.c_int(-1)
        page = address + size * index // _PAGES_CHECKED
        _call('get_mempolicy', ctypes.byref(actual), None, 0, page, _MPOL_F_NODE_ADDR)
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
    """Return the bandwidth of a node's memory to threads on these CPUs, the best of some runs.

    :param cpus: the CPU of each thread; there should be one thread per core
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
    rates = [0.0] * len(cpus)

    def read(index: int, memory: Memory) -> None:
        read_bytes = 0
        started_s = time.perf_counter()
        elapsed_s = 0.0
        while elapsed_s < run_s:
            _libc.memchr(memory.address, 1, memory.size)
            read_bytes += memory.size
            elapsed_s = time.perf_counter() - started_s
        rates[index] = read_bytes / elapsed_s

    run_on_cpus(
        cpus, [functools.partial(read, index, memory) for index, memory in enumerate(memories)]
    )
    return sum(rates)


def run_on_cpus(cpus: Collection[int], functions: Collection[Callable[[], object]]) -> None:
    """Run each function in a thread on its CPU, all at once; raise an exception of one here.

    If a thread cannot be started on its CPU, no function is run.

    :raises CalibrationError: this process may not use one of the CPUs, or a thread has not started
        on its CPU in time
    """
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions), timeout=_START_TIMEOUT_S)

    def run(cpu: int, function: Callable[[], object]) -> None:
        try:
            os.sched_setaffinity(0, {cpu})  # 0 is the calling thread
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)
            start.abort()

    _refuse_denied(cpus)
    _run_threads(
        [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(cpus, functions)],
        start,
    )
    if errors and isinstance(errors[0], threading.BrokenBarrierError):
        raise CalibrationError(
            'a thread on one of the CPUs %s did not start within %g s: another program occupies it'
            % (format_cpulist(cpus), _START_TIMEOUT_S)
        )
    if errors:
        raise errors[0]


def _run_threads(threads: Iterable[threading.Thread], start: threading.Barrier) -> None:
    """Run threads that begin together, and wait for them even if interrupted.

    They must not read memory after it is freed.
    """
    running: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            running.append(thread)
        for thread in running:
            thread.join()
    finally:
        start.abort()  # only matters to those that still wait for others
        for thread in running:
            thread.join()


def _refuse_denied(cpus: Iterable[int]) -> None:
    """Raise an error if this process may not use one of the CPUs.

    Each is tried, because isolated CPUs are not in the affinity that a process starts with.
    """
    before = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
    except OSError:
        raise CalibrationError(
            'this process may not use CPU %d: run it in a cpuset that includes that CPU' % cpu
        ) from None
    finally:
        os.sched_setaffinity(0, before)


class PointerChain:
    """A list of pointers in random order in a node's memory, with memory to flush the caches."""

    def __init__(
        self, node: int | None, chain_bytes: int, flush_bytes: int, lines: int = CHAIN_LINES
    ) -> None:
        _check_tree()
        self._memory: Memory | None = None
        self._flush: Memory | None = None
        try:
            self._memory = Memory(chain_bytes, node)
            self._flush = Memory(flush_bytes, node)
            offsets = chain_offsets(chain_bytes, lines)
            self.lines = len(offsets)
            self._first = self._memory.address + offsets[0]
            with self._memory.words() as words:
                for offset, next_offset in zip(offsets, offsets[1:]):
                    words[offset // 8 + 2] = self._memory.address + next_offset
        except BaseException:
            self.close()
            raise

    def latency_ns(self, cpu: int, passes: int = _PASSES) -> float:
        """Return the time that a CPU takes from one line to the next, the least of some passes.

        This is CPU time of the thread, so that waiting for the CPU does not count.
        """
        times: list[int] = []
        flush = self._flush
        assert flush is not None, 'closed'

        def chase() -> None:
            for _ in range(passes):
                for _ in range(2):
                    _libc.memchr(flush.address, 1, flush.size)
                times.append(self._pass_ns())

        run_on_cpus([cpu], [chase])
        return min(times) / self.lines

    def _pass_ns(self) -> int:
        root = _pointer(self._first)
        started_ns = time.thread_time_ns()
        _libc.tfind(_pointer(1), ctypes.byref(root), _ALWAYS_RIGHT)
        return time.thread_time_ns() - started_ns

    def close(self) -> None:
        """Free the memory."""
        for memory in (self._memory, self._flush):
            if memory is not None:
                memory.close()
        self._memory = self._flush = None


def chain_offsets(size: int, lines: int) -> list[int]:
    """Return the offsets of a chain's lines in the order in which they are visited.

    The memory is divided into equal parts, each with one line of the chain at a random offset, so
    that a line fetched by the adjacent-line prefetcher is never used. The order is random within
    consecutive windows.

    :param size: size of the memory in bytes
    """
    generator = random.Random(1)
    stride = size // lines
    lines_per_part = stride // LINE_BYTES
    per_window = max(1, min(lines, _WINDOW_BYTES // stride))
    offsets: list[int] = []
    for first in range(0, lines, per_window):
        window = list(range(first, min(first + per_window, lines)))
        generator.shuffle(window)
        offsets += [
            part * stride + LINE_BYTES * int(generator.random() * lines_per_part)
            for part in window
        ]
    return offsets


def _check_tree() -> None:
    """Verify that a node of a tree is {key, left, right} in this C library.

    :raises CalibrationError: it is laid out differently
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
        'latencies cannot be measured with it: set latency_ns by hand'
    )
