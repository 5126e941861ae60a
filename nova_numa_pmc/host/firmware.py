# SPDX-License-Identifier: Apache-2.0
"""Read what the firmware's tables say about memory: latencies (HMAT) and modules (SMBIOS).

Only root can read either table.

sysfs only shows the latencies from the best initiators (``nodeN/access1``), and never a remote
latency; ACPI's HMAT has the whole matrix. Its format is in ACPI 6.5, 5.2.28.4, and its units in
Linux's drivers/acpi/numa/hmat.c. The table contains ids of proximity domains. Linux numbers nodes
in the order in which SRAT lists these domains; on most hosts the numbers are the same.

SMBIOS has the memory modules and their speed (DMTF DSP0134, 7.18: *Memory Device*, type 17).
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_HMAT = 'sys/firmware/acpi/tables/HMAT'
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
    data = _read_table(root, _HMAT)
    try:
        return {} if data is None else parse_hmat(data)
    except ValueError as error:
        raise TopologyError('%s: %s' % (os.path.join(root, _HMAT), error)) from None


def _read_table(root: str, path: str) -> bytes | None:
    """Return the bytes of a table; None if the firmware has no such table.

    :raises TopologyError: the table cannot be read
    """
    path = os.path.join(root, path)
    try:
        with open(path, 'rb') as file:
            return file.read(_SIZE_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TopologyError('%s: %s: run as root' % (path, error.strerror)) from None


def parse_hmat(data: bytes) -> dict[tuple[int, int], float]:
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


#: Share of the theoretical maximum that programs reach, before they only wait longer: refreshes,
#: changes between reading and writing, and misses of open rows take the rest. Results of STREAM
#: are 75 to 90 % of it (McCalpin, https://www.cs.virginia.edu/stream/).
EFFICIENCY = 0.8
_SMBIOS = 'sys/firmware/dmi/tables/DMI'
_MEMORY_DEVICE = 17
_CHANNEL_BYTES = 8
_UNKNOWN_SPEEDS = (0, 0xFFFF)
#: Technologies of a memory device that are DRAM: other, unknown, DRAM, NVDIMM-N.
_DRAM = (None, 1, 2, 3, 4)
#: Nodes whose memory per channel differs by less than this have the same number of modules.
_ALIKE_MAX_RATIO = 1.1


class Dimms(Record):
    """The memory modules of a host.

    :param number: number of modules
    :param transfers_per_sec: the configured speed of the slowest
    """

    number: int
    transfers_per_sec: float


def read_dimms(root: str = '/') -> Dimms | None:
    """Return the host's memory modules; None if the firmware does not report them.

    :raises TopologyError: the table cannot be read
    """
    data = _read_table(root, _SMBIOS)
    speeds = [
        _number(device, 0x20, '<H')
        for device in _structures(data or b'', _MEMORY_DEVICE)
        if _number(device, 0x0C, '<H') and _number(device, 0x28, 'B') in _DRAM
    ]
    known = [speed for speed in speeds if speed is not None and speed not in _UNKNOWN_SPEEDS]
    if not known or len(known) < len(speeds):
        return None
    return Dimms(len(known), min(known) * 1e6)


def _structures(data: bytes, kind: int) -> Iterator[bytes]:
    """Yield the formatted areas of the structures of a type; a truncated one ends the table."""
    offset = 0
    while offset + 4 <= len(data):
        length = data[offset + 1]
        end = data.find(b'\0\0', offset + length)  # the end of the strings
        if length < 4 or end < 0:
            return
        if data[offset] == kind:
            yield data[offset : offset + length]
        offset = end + 2


def _number(structure: bytes, offset: int, layout: str) -> int | None:
    """Return a field; None if the structure is of an older version, which lacks it."""
    if offset + struct.calcsize(layout) > len(structure):
        return None
    value: int = struct.unpack_from(layout, structure, offset)[0]
    return value


def maxima_bytes_per_sec(
    by_option: Mapping[int, float],
    by_clock: Mapping[int, float],
    channels: Mapping[int, int],
    dimms: Dimms | None,
    memory_bytes: Mapping[int, int],
) -> dict[int, float]:
    """Return {node id: maximum bandwidth} of the nodes whose maximum is known.

    :param by_option: {node id: maximum that the operator gave}
    :param by_clock: {node id: what the clocks of its memory controllers allow}
    :param channels: {node id: number of its memory channels, with modules or not}
    :param dimms: None if they are unknown
    :param memory_bytes: {node id: size of its memory}
    """
    by_speed = _by_speed(channels, dimms, memory_bytes)
    derived = {
        node: EFFICIENCY * min(limits[node] for limits in (by_clock, by_speed) if limits.get(node))
        for node in channels
        if by_clock.get(node) or by_speed.get(node)
    }
    return {**derived, **by_option}


def _by_speed(
    channels: Mapping[int, int], dimms: Dimms | None, memory_bytes: Mapping[int, int]
) -> dict[int, float]:
    """Return {node id: bytes per second of the channels that have modules}.

    SMBIOS names the slot of a module in words of the vendor, so it is known which node has how
    many only if all nodes have the same memory per channel. Of two modules on a channel, the
    second is in use only after each channel has one.
    """
    sizes = [memory_bytes[node] / number for node, number in channels.items()]
    if not sizes or dimms is None or max(sizes) > _ALIKE_MAX_RATIO * min(sizes):
        return {}
    populated_ratio = min(1.0, dimms.number / sum(channels.values()))
    return {
        node: number * populated_ratio * dimms.transfers_per_sec * _CHANNEL_BYTES
        for node, number in channels.items()
    }
