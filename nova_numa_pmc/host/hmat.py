# SPDX-License-Identifier: Apache-2.0
"""Read the firmware's latencies between nodes from ACPI's HMAT.

sysfs only shows the latencies from the best initiators (``nodeN/access1``), and never a remote
latency. The whole matrix is in the raw table, which only root can read. Its format is in ACPI 6.5,
5.2.28.4, and its units in Linux's drivers/acpi/numa/hmat.c. The table contains ids of proximity
domains. Linux numbers nodes in the order in which SRAT lists these domains; on most hosts the
numbers are the same.
"""

from __future__ import annotations

import os
import struct

from nova_numa_pmc.exceptions import TopologyError

_PATH = 'sys/firmware/acpi/tables/HMAT'
_SIZE_MAX_BYTES = 1 << 20
_HEADER = struct.Struct('<4sIBB')
_FIRST = 40
# type, reserved, length; flags, data type, transfer size, reserved; initiators, targets,
# reserved; base unit.
_LOCALITY = struct.Struct('<HHIBBBBIIIQ')
_LOCALITY_TYPE = 1
_MEMORY = 0
_ACCESS_LATENCY, _READ_LATENCY = 0, 1
_UNKNOWN = (0, 0xFFFF)
_DOMAINS_MAX = 4096
#: No memory responds in less than a tenth of a nanosecond or more than a millisecond.
_NS_MIN, _NS_MAX = 0.1, 1e6


def read_latencies_ns(root: str = '/') -> dict[tuple[int, int], float]:
    """Return {(initiator's domain, memory's domain): ns}; empty if the host has no HMAT.

    This is the read latency if the table has it, and the access latency otherwise.

    :raises TopologyError: the table cannot be read or understood
    """
    path = os.path.join(root, _PATH)
    try:
        with open(path, 'rb') as file:
            data = file.read(_SIZE_MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TopologyError('%s: %s: run as root' % (path, error.strerror)) from None
    try:
        return parse(data)
    except ValueError as error:
        raise TopologyError('%s: %s' % (path, error)) from None


def parse(data: bytes) -> dict[tuple[int, int], float]:
    """Return the latencies in a table, as :func:`read_latencies_ns` does.

    :param data: the bytes of the table
    :raises ValueError: they are not an HMAT, or it is damaged or of an unknown revision
    """
    if len(data) < _FIRST:
        raise ValueError('too short for an ACPI table')
    signature, length, revision, _checksum = _HEADER.unpack_from(data)
    if signature != b'HMAT' or length != len(data) or sum(data) & 0xFF:
        raise ValueError('not an HMAT, or damaged')
    # Unit of each revision in nanoseconds, as in Linux (hmat_normalize()).
    unit_ns = {1: 0.1, 2: 0.001}.get(revision)
    if unit_ns is None:
        raise ValueError('revision %d is unknown' % revision)
    latencies_by_type: dict[int, dict[tuple[int, int], float]] = {
        _ACCESS_LATENCY: {},
        _READ_LATENCY: {},
    }
    offset = _FIRST
    while offset < len(data):
        if offset + 8 > len(data):
            raise ValueError('a structure is truncated')
        kind, _reserved, size = struct.unpack_from('<HHI', data, offset)
        if size < 8 or offset + size > len(data):
            raise ValueError('a structure has an impossible length: %d' % size)
        if kind == _LOCALITY_TYPE:
            _add_locality(data[offset : offset + size], unit_ns, latencies_by_type)
        offset += size
    return {**latencies_by_type[_ACCESS_LATENCY], **latencies_by_type[_READ_LATENCY]}


def _add_locality(
    data: bytes, unit_ns: float, latencies_by_type: dict[int, dict[tuple[int, int], float]]
) -> None:
    if len(data) < _LOCALITY.size:
        raise ValueError('a structure of latencies is truncated')
    (_kind, _r1, _size, flags, data_type, _least, _r2, rows, columns, _r3, base) = (
        _LOCALITY.unpack_from(data)
    )
    if flags & 0xF != _MEMORY or data_type not in latencies_by_type:
        return
    needed = _LOCALITY.size + 4 * (rows + columns) + 2 * rows * columns
    if rows > _DOMAINS_MAX or columns > _DOMAINS_MAX or needed > len(data):
        raise ValueError('a structure of latencies is shorter than its domains')
    initiators = struct.unpack_from('<%dI' % rows, data, _LOCALITY.size)
    targets = struct.unpack_from('<%dI' % columns, data, _LOCALITY.size + 4 * rows)
    entries = struct.unpack_from(
        '<%dH' % (rows * columns), data, _LOCALITY.size + 4 * (rows + columns)
    )
    for row, initiator in enumerate(initiators):
        for column, target in enumerate(targets):
            entry = entries[row * columns + column]
            value_ns = entry * base * unit_ns
            if entry not in _UNKNOWN and _NS_MIN <= value_ns <= _NS_MAX:
                latencies_by_type[data_type][initiator, target] = value_ns
