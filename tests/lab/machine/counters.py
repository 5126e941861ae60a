# SPDX-License-Identifier: Apache-2.0
"""The host's side of plugin/counters.h: lays out the page, sets the pace, reads counts."""

import mmap
import os
import struct

MAGIC = 0x42414C414D554E
BAR_BYTES, HEADER_BYTES, VCPU_BYTES = 256 << 10, 4096, 2048
MAX_VCPUS, MAX_NODES, MODES = 64, 16, 4
_HEADER = struct.Struct('<QIIQII')
_RANGE = struct.Struct('<QQII')
_PACE_OFFSET = 16
_RANGES_OFFSET = 24
_MODE_WORDS = 2 + 2 * MAX_NODES


def create(path, shape):
    """Write an empty page for the shape, which QEMU maps into the machine and into the plugin."""
    nodes = bytearray(MAX_VCPUS)
    for node in range(shape.nodes):
        for cpu in shape.node_cpus(node):
            nodes[cpu] = node
    with open(path, 'wb') as page:
        page.truncate(BAR_BYTES)
        page.write(_HEADER.pack(MAGIC, shape.cpus, shape.nodes, 0, 0, 0) + nodes)


def _page(path):
    with open(path, 'r+b') as page:
        return mmap.mmap(page.fileno(), BAR_BYTES)


def set_ranges(path, ranges):
    """Write for the plugin which node owns which RAM block: (start, end, node) triples."""
    with _page(path) as page:
        for i, (start, end, node) in enumerate(ranges):
            at = _HEADER.size + MAX_VCPUS + i * _RANGE.size
            page[at : at + _RANGE.size] = _RANGE.pack(start, end, node, 0)
        page[_RANGES_OFFSET : _RANGES_OFFSET + 4] = struct.pack('<I', len(ranges))


def set_pace(path, instructions_per_sec):
    """Hold each vCPU to that speed; 0 means as fast as the host allows."""
    with _page(path) as page:
        page[_PACE_OFFSET : _PACE_OFFSET + 8] = struct.pack('<Q', instructions_per_sec)


def read(path):
    """Return the counts of each vCPU since boot.

    {'instructions', 'hits', 'dram': [accesses by node]} in all modes, 'guest_instructions' in
    KVM guests only.
    """
    size = os.path.getsize(path)
    if size != BAR_BYTES:
        raise OSError(f'{path}: {size} bytes, not {BAR_BYTES}')
    with _page(path) as page:
        cpus = _HEADER.unpack_from(page, 0)[1]
        counts = []
        for cpu in range(cpus):
            words = struct.unpack_from(
                f'<{MODES * _MODE_WORDS}Q', page, HEADER_BYTES + cpu * VCPU_BYTES
            )
            modes = [words[m * _MODE_WORDS : (m + 1) * _MODE_WORDS] for m in range(MODES)]
            counts.append(
                {
                    'instructions': sum(m[0] for m in modes),
                    'guest_instructions': sum(m[0] for m in modes[MODES // 2 :]),
                    'hits': sum(m[1] for m in modes),
                    'dram': [
                        sum(m[2 + n] + m[2 + MAX_NODES + n] for m in modes)
                        for n in range(MAX_NODES)
                    ],
                }
            )
        return counts
