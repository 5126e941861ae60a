# SPDX-License-Identifier: Apache-2.0
"""Look up the encoding of an event in libpfm4 by its name.

Debian has no Python package of libpfm4 (Fedora's python3-libpfm is a SWIG
module from libpfm's own build), so the functions that are needed are bound
with ctypes. Structures: ``perfmon/pfmlib_perf_event.h`` of libpfm 4.13.
"""

from __future__ import annotations

import ctypes
import os
import struct

_SONAME = 'libpfm.so.4'
_PLM_USER_AND_KERNEL = 0x8 | 0x1
_OS_PERF_EVENT = 1
_ATTR_BYTES = 256  # room for any kernel's perf_event_attr


class _Argument(ctypes.Structure):
    _fields_ = (
        ('attr', ctypes.c_void_p),
        ('name', ctypes.c_void_p),
        ('size', ctypes.c_size_t),
        ('index', ctypes.c_int),
        ('cpu', ctypes.c_int),
        ('flags', ctypes.c_int),
    )


class Libpfm:
    """libpfm4, loaded and initialised."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def encode(self, name: str) -> tuple[int, int, int, int] | None:
        """Return (type, config, config1, config2) of an event; None if it is unknown.

        The other fields of perf_event_attr are dropped, because libpfm4 sets
        ``exclude_guest`` and guests are to be counted here.

        :param name: name with the PMU's prefix, such as ``skx::EVENT:UMASK``
        """
        attr = ctypes.create_string_buffer(_ATTR_BYTES)
        argument = _Argument(ctypes.addressof(attr), None, ctypes.sizeof(_Argument), 0, 0, 0)
        if self._library.pfm_get_os_event_encoding(
            name.encode(), _PLM_USER_AND_KERNEL, _OS_PERF_EVENT, ctypes.byref(argument)
        ):
            return None
        kind, _, config = struct.unpack_from('=IIQ', attr)
        config1, config2 = struct.unpack_from('=QQ', attr, 56)
        return kind, config, config1, config2


def load(soname: str = _SONAME) -> Libpfm | None:
    """Return libpfm4; None if the library is missing or cannot be initialised.

    ``LIBPFM_ENCODE_INACTIVE`` lets it encode events of CPUs other than the one
    it runs on (libpfm(3)). It is only read during initialisation.
    """
    before = os.environ.get('LIBPFM_ENCODE_INACTIVE')
    os.environ['LIBPFM_ENCODE_INACTIVE'] = '1'
    try:
        library = ctypes.CDLL(soname)
        return None if library.pfm_initialize() else Libpfm(library)
    except (OSError, AttributeError):
        return None
    finally:
        if before is None:
            del os.environ['LIBPFM_ENCODE_INACTIVE']
        else:
            os.environ['LIBPFM_ENCODE_INACTIVE'] = before
