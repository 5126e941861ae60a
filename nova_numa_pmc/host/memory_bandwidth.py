# SPDX-License-Identifier: Apache-2.0
"""Determine how many bytes per second each node's memory can carry.

The operator's option comes first. Otherwise it is :data:`EFFICIENCY` times what the memory
controllers' clocks allow (:data:`counter_roles.MEM_MAX`) or channels × transfers per second × 8
bytes, whichever is less: the clock of a channel without a module may run as well. The modules and
their speed are in the firmware's SMBIOS, whose table only root can read (DMTF DSP0134, 7.18:
*Memory Device*, type 17). No maximum is derived from traffic, because on a host that has always
been idle the highest traffic says nothing.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Share of the theoretical maximum that programs reach, before they only wait longer: refreshes,
#: changes between reading and writing, and misses of open rows take the rest. Results of STREAM
#: are 75 to 90 % of it (McCalpin, https://www.cs.virginia.edu/stream/).
EFFICIENCY = 0.8
_PATH = 'sys/firmware/dmi/tables/DMI'
_SIZE_MAX_BYTES = 1 << 20
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
    path = os.path.join(root, _PATH)
    try:
        with open(path, 'rb') as file:
            data = file.read(_SIZE_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TopologyError('%s: %s: run as root' % (path, error.strerror)) from None
    speeds = [
        _number(device, 0x20, '<H')
        for device in _structures(data, _MEMORY_DEVICE)
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
