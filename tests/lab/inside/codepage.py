#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs inside a machine: what a write to a page costs of which QEMU knows translations.

Fills a page with returns, calls some, which QEMU translates one by one, and clears the page.
"""

import ctypes
import mmap
import time

BYTES = 4096
RETURN = b'\xc3'


def milliseconds(work, *args):
    """Return how long a call takes."""
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
