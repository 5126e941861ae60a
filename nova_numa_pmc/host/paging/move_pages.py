# SPDX-License-Identifier: Apache-2.0
"""Read and change the nodes of a process's pages: move_pages(2), and a remedy for its gaps.

If py-libnuma is installed, libnuma's ``move_pages`` is called through its handle (py-libnuma has
no function for it), which works on every architecture that libnuma supports. Otherwise the system
call is made directly, which needs nothing installed; its numbers are listed here for the common
architectures. libnuma without py-libnuma is not used: it would only add rare architectures, on
which py-libnuma can be installed.

Nothing else of py-libnuma is called: its functions take masks that they do not check, and an
absent node ends the process. Here the kernel checks the node, and answers ENODEV.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    #: move_pages(pid, count, pages, nodes, statuses, flags), the arrays by their addresses.
    MovePages = Callable[[int, int, int, int | None, int, int], int]

_SYSCALLS = {'x86_64': 279, 'aarch64': 239, 'ppc64le': 301, 's390x': 310, 'riscv64': 239}
_MOVE, _MOVE_ALL = 1 << 1, 1 << 2  # include/uapi/linux/mempolicy.h
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
#: Pages that one call touches: IOV_MAX of limits.h.
_TOUCHED = 1024
#: Initial status of a page, which no kernel returns: the status was not written.
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
    :raises GuestGone, PageMoveError: as :func:`move`
    """
    statuses = array('i', (UNREPORTED,)) * len(addresses)
    _call(pid, addresses, None, statuses, 0)
    return statuses


def move(
    pid: int, addresses: array[int], node: int, shared: bool = False
) -> tuple[int, array[int]]:
    """Move pages to a node.

    The kernel allocates on that node only, and reclaims its page cache for it, but never
    kills for it.

    :param shared: move also pages that other processes map (needs CAP_SYS_NICE)
    :returns: (why, array('i')): a node id or a negative errno for each page, and 0. Where the
        kernel stopped at pages that would not move, an errno, and :data:`UNREPORTED` for those
        from there on, whether or not they moved
    :raises GuestGone: there is no such process any more
    :raises PageMoveRefused: the kernel lets us move nothing of it
    :raises PageMoveError: another error; pages may have moved
    """
    statuses = array('i', (UNREPORTED,)) * len(addresses)
    nodes = array('i', (node,)) * len(addresses)
    why = _call(pid, addresses, nodes, statuses, _MOVE_ALL if shared else _MOVE)
    return why, statuses


def touch(pid: int, addresses: array[int], cpus: Set[int] = frozenset()) -> None:
    """Read a byte of each page, so that pages waiting for a NUMA hinting fault are seen.

    Linux 6.1 to 6.5 take a page that automatic NUMA balancing has marked for an absent one,
    and a huge page for the zero page (gup_can_follow_protnone() and no_page_table() in mm/gup.c;
    "mm/gup: reintroduce FOLL_NUMA as FOLL_HONOR_NUMA_FAULT", 6.6). A page that cannot be read
    stays as it is: nothing is raised.

    :param addresses: array('Q') of pages that are present: others would be allocated
    :param cpus: CPUs to do this on, if this process may use any of them: those of the node where
        the pages belong, as a fault may bring a page to the node of the CPU that touches it
    """
    read_part = _process_vm_readv()
    with _on(cpus):
        for first in range(0, len(addresses), _TOUCHED):
            part = addresses[first : first + _TOUCHED]
            read = ctypes.create_string_buffer(len(part))
            here = _Range(ctypes.addressof(read), len(part))
            there = (_Range * len(part))(*(_Range(address, 1) for address in part))
            read_part(pid, ctypes.byref(here), 1, there, len(part), 0)


@contextlib.contextmanager
def _on(cpus: Set[int]) -> Iterator[None]:
    """Run the block on those of the CPUs that this thread may use, if any."""
    before = os.sched_getaffinity(0)
    if before.isdisjoint(cpus):
        yield
        return
    with contextlib.suppress(OSError):  # offline by now
        os.sched_setaffinity(0, before & cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@functools.cache
def _process_vm_readv() -> Callable[..., int]:
    vector = ctypes.POINTER(_Range)
    function = ctypes.CDLL(None).process_vm_readv
    function.argtypes = (_INT, vector, ctypes.c_ulong, vector, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (('base', _POINTER), ('bytes', ctypes.c_size_t))


def _call(
    pid: int, addresses: array[int], nodes: array[int] | None, statuses: array[int], flags: int
) -> int:
    """Return 0, or an errno where the kernel stopped at pages that would not move."""
    not_moved = _function()(
        pid,
        len(addresses),
        addresses.buffer_info()[0],
        nodes.buffer_info()[0] if nodes else None,
        statuses.buffer_info()[0],
        flags,
    )
    if not_moved >= 0:
        return errno.EAGAIN if not_moved else 0
    code = ctypes.get_errno()
    if code == errno.ENOMEM and nodes:
        return code  # the node is full; a part of them may have moved
    message = 'move_pages of process %d%s: %s' % (
        pid,
        ' to node %d' % nodes[0] if nodes else '',
        os.strerror(code),
    )
    # EINVAL: it has no memory any more, as it is ending (find_mm_struct() in mm/migrate.c).
    if code in (errno.ESRCH, errno.EINVAL):
        raise GuestGone(message)
    if code in _REMEDIES:
        raise PageMoveRefused('%s: %s' % (message, _REMEDIES[code]))
    raise PageMoveError(message)


_bound: list[MovePages] = []


def _function() -> MovePages:
    """Return the function, bound once."""
    if not _bound:
        _bound.append(_bind())
    return _bound[0]


def _bind() -> MovePages:
    arguments = (_INT, ctypes.c_ulong, _POINTER, _POINTER, _POINTER, _INT)
    # A prototype of our own: the handle's is shared with other users of py-libnuma, and does not
    # keep errno.
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, *arguments, use_errno=True)
    # Whatever its import may raise: without libnuma an AttributeError, and another distribution
    # named numa has no such handle.
    with contextlib.suppress(Exception):
        return prototype(('move_pages', _py_libnuma()))
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise PageMoveRefused(
            '%s: the system call number of move_pages is unknown: install py-libnuma'
            % platform.machine()
        )
    # Variadic in C: each argument as wide as a register.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long

    def syscall(
        pid: int, count: int, pages: int, nodes: int | None, statuses: int, flags: int
    ) -> int:
        result: int = libc.syscall(
            ctypes.c_long(number),
            ctypes.c_long(pid),
            ctypes.c_ulong(count),
            _POINTER(pages),
            _POINTER(nodes),
            _POINTER(statuses),
            ctypes.c_long(flags),
        )
        return result

    return syscall


def _py_libnuma() -> ctypes.CDLL:
    from numa import LIBNUMA

    return LIBNUMA
