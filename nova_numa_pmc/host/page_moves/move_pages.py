# SPDX-License-Identifier: Apache-2.0
"""Locate and move a process's pages by move_pages(2), and make visible pages that it misses.

If py-libnuma is installed, libnuma's ``move_pages`` is called through py-libnuma's library handle
(py-libnuma has no function for it). This works on every architecture that libnuma supports.
Otherwise the system call is made directly, which requires no package but works on the common
architectures only. libnuma is not used without py-libnuma, because that would only add rare
architectures, on which py-libnuma can be installed.

Nothing else of py-libnuma is called: its functions do not check the masks that they are given, and
a node that does not exist ends the process. Here the kernel checks the node and returns ENODEV.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
from array import array
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import GuestGone, PageMoveError, PageMoveRefused
from nova_numa_pmc.host import cpusets, system_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    #: move_pages(pid, count, pages, nodes, statuses, flags), which raises OSError; arrays are
    #: passed as addresses.
    MovePages = Callable[[int, int, int, int | None, int, int], int]

_MOVE, _MOVE_ALL = 1 << 1, 1 << 2  # include/uapi/linux/mempolicy.h
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
#: Pages that one call touches: IOV_MAX of limits.h.
_TOUCH_PAGES_MAX = 1024
#: Initial status of a page, which the kernel never returns: it has not written a status.
UNREPORTED = -(1 << 31)

_REMEDIES = {
    errno.EPERM: 'it needs CAP_SYS_NICE and CAP_SYS_PTRACE',
    errno.EACCES: 'the node is not in the cpuset.mems of the guest: add it there',
    errno.ENODEV: 'there is no such node with memory',
    errno.ENOSYS: 'this kernel or a seccomp filter has no move_pages',
}


def locate(pid: int, addresses: array[int]) -> array[int]:
    """Return the node of each page.

    :param addresses: array('Q'), multiples of the page size
    :returns: array('i') of node ids, or negative errnos: -ENOENT where no page is present,
        -EFAULT where the zero page or no memory is mapped; see :func:`touch`
    :raises GuestGone, PageMoveError: as :func:`move` does
    """
    statuses = array('i', (UNREPORTED,)) * len(addresses)
    _call(pid, addresses, None, statuses, 0)
    return statuses


def move(
    pid: int, addresses: array[int], node: int, shared: bool = False
) -> tuple[int, array[int]]:
    """Move pages to a node.

    The kernel allocates on that node only. It reclaims page cache there if necessary, but never
    invokes the OOM killer.

    :param shared: also move pages that other processes map (needs CAP_SYS_NICE)
    :returns: (reason, statuses), where the reason is 0 and each status is a node id or a negative
        errno. If the kernel stopped at pages that did not move, the reason is an errno, and the
        statuses of these and all later pages are :data:`UNREPORTED`, whether or not they moved
    :raises GuestGone: the process no longer exists
    :raises PageMoveRefused: the kernel does not allow any of the process's pages to be moved
    :raises PageMoveError: another error; pages may have moved
    """
    statuses = array('i', (UNREPORTED,)) * len(addresses)
    nodes = array('i', (node,)) * len(addresses)
    reason = _call(pid, addresses, nodes, statuses, _MOVE_ALL if shared else _MOVE)
    return reason, statuses


def touch(pid: int, addresses: array[int], cpus: Set[int] = frozenset()) -> None:
    """Read a byte of each page, so that :func:`locate` sees pages that await a NUMA hinting fault.

    If automatic NUMA balancing has marked a page, Linux 6.1 to 6.5 report it as absent, or as the
    zero page if it is a huge page (gup_can_follow_protnone() and no_page_table() in mm/gup.c;
    "mm/gup: reintroduce FOLL_NUMA as FOLL_HONOR_NUMA_FAULT", 6.6). A page that cannot be read
    is left as it is, without an error.

    :param addresses: array('Q') of pages that are present; others would be allocated
    :param cpus: CPUs to do this on, if this process may use any of them. They should be those of
        the node where the pages belong, since the fault may move a page to the node of the CPU
        that touches it
    """
    read_memory = _process_vm_readv()
    with _running_on(cpus):
        for first in range(0, len(addresses), _TOUCH_PAGES_MAX):
            batch = addresses[first : first + _TOUCH_PAGES_MAX]
            buffer = ctypes.create_string_buffer(len(batch))
            local = _Iovec(ctypes.addressof(buffer), len(batch))
            remote = (_Iovec * len(batch))(*(_Iovec(address, 1) for address in batch))
            read_memory(pid, ctypes.byref(local), 1, remote, len(batch), 0)


@contextlib.contextmanager
def _running_on(cpus: Set[int]) -> Iterator[None]:
    """Run the block on those of these CPUs that this thread may use, if there are any."""
    before = os.sched_getaffinity(0)
    if before.isdisjoint(cpus):
        yield
        return
    with contextlib.suppress(OSError):  # the CPUs have gone offline
        os.sched_setaffinity(0, before & cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@functools.cache
def _process_vm_readv() -> Callable[..., int]:
    vector = ctypes.POINTER(_Iovec)
    function = ctypes.CDLL(None).process_vm_readv
    function.argtypes = (_INT, vector, ctypes.c_ulong, vector, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


class _Iovec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (('iov_base', _POINTER), ('iov_len', ctypes.c_size_t))


def _call(
    pid: int, addresses: array[int], nodes: array[int] | None, statuses: array[int], flags: int
) -> int:
    """Return 0, or an errno if the kernel stopped at pages that did not move."""
    move_pages = _bind()
    try:
        not_moved = move_pages(
            pid,
            len(addresses),
            addresses.buffer_info()[0],
            nodes.buffer_info()[0] if nodes else None,
            statuses.buffer_info()[0],
            flags,
        )
    except OSError as error:
        if error.errno == errno.ENOMEM and nodes:
            return errno.ENOMEM  # the node is full; some of the pages may have moved
        message = 'move_pages of process %d%s: %s' % (
            pid,
            ' to node %d' % nodes[0] if nodes else '',
            error.strerror,
        )
        # EINVAL: the process is ending and has no memory any more (find_mm_struct() in
        # mm/migrate.c).
        if error.errno in (errno.ESRCH, errno.EINVAL):
            raise GuestGone(message)
        if error.errno in _REMEDIES:
            raise PageMoveRefused('%s: %s' % (message, _REMEDIES[error.errno]))
        raise PageMoveError(message)
    return errno.EAGAIN if not_moved else 0


@functools.cache
def _bind() -> MovePages:
    """Return libnuma's function or the system call."""
    arguments = (_INT, ctypes.c_ulong, _POINTER, _POINTER, _POINTER, _INT)
    # The function is given a prototype here, because the handle's own is shared with other users
    # of py-libnuma and does not save errno.
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, *arguments, use_errno=True)
    # The import can fail in several ways: without libnuma it raises AttributeError, and another
    # distribution named numa has no such handle.
    with contextlib.suppress(Exception):
        function = prototype(('move_pages', _py_libnuma()))
        function.errcheck = system_calls.check_result
        return function
    number = system_calls.number_of('move_pages')
    if number is None:
        raise PageMoveRefused(
            '%s: the system call number of move_pages is unknown: install py-libnuma'
            % platform.machine()
        )
    return functools.partial(system_calls.call, number)


def _py_libnuma() -> ctypes.CDLL:
    from numa import LIBNUMA

    return LIBNUMA


class KernelCalls:
    """The kernel calls of a move; tests substitute a model of the kernel."""

    def write(self, path: str, text: str) -> None:
        """Write a control file, as :func:`cpusets.write_file` does."""
        cpusets.write_file(path, text)

    def locate(self, pid: int, addresses: array[int]) -> array[int]:
        """Return the node of each page, as :func:`locate` does."""
        return locate(pid, addresses)

    def move(
        self, pid: int, addresses: array[int], node: int, shared: bool
    ) -> tuple[int, array[int]]:
        """Move pages to a node, as :func:`move` does."""
        return move(pid, addresses, node, shared)

    def touch(self, pid: int, addresses: array[int], cpus: frozenset[int]) -> None:
        """Read a byte of each page, as :func:`touch` does."""
        touch(pid, addresses, cpus)


#: The calls to this host's kernel.
KERNEL_CALLS = KernelCalls()
