# SPDX-License-Identifier: Apache-2.0
"""Latencies are read from the firmware's HMAT, and a damaged table is refused."""

import os
import struct
import tempfile
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import firmware


def locality(entries, data_type=1, flags=0, base=1000, initiators=(0, 1), targets=(0, 1)):
    """Return a latency structure as written by firmware."""
    body = struct.pack('<BBBBIIIQ', flags, data_type, 0, 0, len(initiators), len(targets), 0, base)
    for value in (*initiators, *targets):
        body += struct.pack('<I', value)
    body += b''.join(struct.pack('<H', entry) for entry in entries)
    return struct.pack('<HHI', 1, 0, len(body) + 8) + body


def table(*structures, revision=2):
    """Return a whole table with its checksum."""
    body = b''.join(structures)
    data = bytearray(
        struct.pack(
            '<4sIBB6s8sIII', b'HMAT', 40 + len(body), revision, 0, b'TESTER', b'TABLE', 1, 0, 1
        )
        + bytes(4)
        + body
    )
    data[9] = -sum(data) & 0xFF
    return bytes(data)


class TestHmat(unittest.TestCase):
    def test_read_latencies_go_before_access_latencies(self):
        data = table(
            struct.pack('<HHI', 0, 0, 8),
            locality((60, 100, 100, 60), data_type=0),
            locality((70, 0xFFFF, 0, 75)),
            locality((9, 9, 9, 9), data_type=4),
            locality((5, 5, 5, 5), flags=1),
        )
        self.assertEqual(
            {(0, 0): 70.0, (0, 1): 100.0, (1, 0): 100.0, (1, 1): 75.0}, firmware.parse_hmat(data)
        )

    def test_bytes_that_are_not_an_hmat_are_refused(self):
        good = table(locality((60, 100, 100, 60)))
        for data in (
            b'',
            good[:-1],
            good + b'\0',
            good.replace(b'HMAT', b'SRAT'),
            table(locality((1, 2))),
            table(b'\1\0\0\0\0\0\0\0'),
            table(b'\1'),
            table(struct.pack('<HHI', 1, 0, 8)),
            table(revision=3),
        ):
            with self.assertRaises(ValueError):
                firmware.parse_hmat(data)

    @given(st.data())
    def test_damage_with_a_right_checksum_is_refused_or_read(self, data):
        good = bytearray(table(locality((60, 100, 100, 60))))
        for _ in range(data.draw(st.integers(1, 4))):
            good[data.draw(st.integers(40, len(good) - 1))] = data.draw(st.integers(0, 255))
        good[9] = 0
        good[9] = -sum(good) & 0xFF
        try:
            latencies = firmware.parse_hmat(bytes(good))
        except ValueError:
            return
        self.assertTrue(all(0.1 <= value <= 1e6 for value in latencies.values()))

    def test_a_missing_table_is_empty_and_a_damaged_one_is_an_error(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual({}, firmware.read_latencies_ns(root))
            directory = os.path.join(root, 'sys/firmware/acpi/tables')
            os.makedirs(directory)
            with open(os.path.join(directory, 'HMAT'), 'wb') as file:
                file.write(b'garbage')
            with self.assertRaisesRegex(TopologyError, 'tables/HMAT: too short'):
                firmware.read_latencies_ns(root)
