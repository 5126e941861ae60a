#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside a machine: measure a write to a page of which QEMU has translations.

Fills a page with return instructions, calls some, which QEMU translates one by one, and clears the
page.
"""

import ctypes
import mmap
import time

BYTES = 4096
RETURN = b'\xc3'


def milliseconds(work, *args):
    """Return the duration of a call [ms]."""
    began = time.perf_counter()
    work(*args)
    return (time.perf_counter() - began) * 1e3


if __name__ == '__main__':
    for count in (256, 1024, 4096):
        page = mmap.mmap(-1, BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page[:] = RETURN * BYTES
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        for offset in range(0, BYTES, BYTES // count):
            ctypes.CFUNCTYPE(None)(start + offset)()
        first, again = (milliseconds(ctypes.memset, start, 0, BYTES) for _ in range(2))
        print(f'{count} translations: cleared in {first:.1f} ms, again in {again:.2f} ms')
