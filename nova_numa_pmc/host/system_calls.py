# SPDX-License-Identifier: Apache-2.0
"""Make system calls that libc has no function for, by their numbers on the common architectures.

Sources of the numbers: arch/x86/entry/syscalls/syscall_64.tbl,
arch/powerpc/kernel/syscalls/syscall.tbl and arch/s390/kernel/syscalls/syscall.tbl of Linux; for
aarch64 and riscv64, include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

_NUMBERS = {
    'mbind': {'x86_64': 237, 'aarch64': 235, 'ppc64le': 259, 's390x': 268, 'riscv64': 235},
    'get_mempolicy': {'x86_64': 239, 'aarch64': 236, 'ppc64le': 260, 's390x': 269, 'riscv64': 236},
    'move_pages': {'x86_64': 279, 'aarch64': 239, 'ppc64le': 301, 's390x': 310, 'riscv64': 239},
    'perf_event_open': {
        'x86_64': 298,
        'aarch64': 241,
        'ppc64le': 319,
        's390x': 331,
        'riscv64': 241,
    },
}


def number_of(name: str) -> int | None:
    """Return a system call's number; None if it is unknown on this architecture."""
    return _NUMBERS[name].get(platform.machine())


def call(number: int, *arguments: object) -> int:
    """Make a system call and return its result.

    :param arguments: ints, or what ctypes passes as a pointer; None is a null pointer
    :raises OSError: the call failed
    """
    # syscall(2) is variadic, so each argument has to be as wide as a register.
    result: int = _libc.syscall(
        ctypes.c_long(number),
        *(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments),
    )
    return result


def check_result(result: Any, *_: object) -> Any:
    """Return a foreign function's result, as its ``errcheck``, unless the function failed.

    :raises OSError: the result is negative, and errno says why
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.syscall.errcheck = check_result
