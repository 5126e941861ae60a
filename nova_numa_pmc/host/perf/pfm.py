# SPDX-License-Identifier: Apache-2.0
"""Look an event's encoding up in libpfm4, by name.

libpfm4 has no Python package in Debian (Fedora's python3-libpfm is a SWIG
module of its own build), so this binds the three calls that are needed with
ctypes. Structures: ``perfmon/pfmlib_perf_event.h`` of libpfm 4.13.
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
        """Return (type, config, config1, config2) of ``skx::EVENT:UMASK``, None: not known.

        The other bits of perf_event_attr are dropped: libpfm4 sets
        ``exclude_guest``, and guests are what is to be counted here.
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
    """Return libpfm4; None where the library is missing or does not start.

    ``LIBPFM_ENCODE_INACTIVE`` makes it encode events of CPUs that it does not
    run on (libpfm(3)); it is read once, at initialisation.
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
