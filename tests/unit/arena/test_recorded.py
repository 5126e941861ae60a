# SPDX-License-Identifier: Apache-2.0
"""Recorded guests come to the arena as they were, and errors in a recording name their line."""

import contextlib
import io
import math
import pathlib
import sqlite3
import tempfile
import unittest

import numpy as np

from tests.arena import __main__ as command, cells, hosts, loads, recorded as subject

OWN = """vcpus,arrive_s,leave_s,memory_mib,cores_per_vcpu
2,1000,1600,4096,0.25
4,1060,,8192,
"""
AZURE = """a,s,d,0,600,99,25,90,Delay-insensitive,2,4
b,s,d,300,300,99,50,90,Unknown,>24,>64
"""


class RecordedTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = str(pathlib.Path(directory.name, 'guests.csv'))

    def read(self, text):
        """Return the guests of a file."""
        pathlib.Path(self.path).write_text(text)
        subject.read.cache_clear()
        return subject.read(self.path)

    def test_the_arenas_own_format_is_read(self):
        trace = self.read(OWN)
        self.assertEqual([0, 60], trace.arrive_s.tolist())
        self.assertEqual([600, math.inf], trace.leave_s.tolist())
        self.assertEqual([2, 4], trace.vcpus.tolist())
        self.assertEqual([4096, 8192], trace.memory_mib.tolist())
        np.testing.assert_array_equal([0.25, np.nan], trace.cores_per_vcpu)

    def test_the_use_of_a_recorded_guest_may_be_left_out(self):
        trace = self.read('arrive_s,leave_s,vcpus,memory_mib\n0,1,1,1\n')
        self.assertTrue(np.isnan(trace.cores_per_vcpu).all())

    def test_azures_table_of_vms_is_read(self):
        trace = self.read(AZURE)
        self.assertEqual([600, 600], trace.leave_s.tolist())
        self.assertEqual([2, 24], trace.vcpus.tolist())
        self.assertEqual([4096, 65536], trace.memory_mib.tolist())
        self.assertEqual([0.25, 0.5], trace.cores_per_vcpu.tolist())

    def packing_trace(self, requests):
        """Return the guests of a database like Azure's packing trace."""
        with contextlib.closing(sqlite3.connect(self.path)) as base:
            base.executescript(
                'CREATE TABLE vmType (id, vmTypeId, machineId, core, memory, hdd, ssd, nic);'
                'CREATE TABLE vm (vmId, tenantId, vmTypeId, priority, starttime, endtime);'
                'INSERT INTO vmType VALUES (1, 7, 1, 0.25, 0.125, 0, 0, 0);'
                'INSERT INTO vmType VALUES (2, 7, 2, 0.125, 0.0625, 0, 0, 0);'
                'INSERT INTO vmType VALUES (3, 8, 1, 0.0001, 0.0000001, 0, 0, 0);'
            )
            base.executemany('INSERT INTO vm VALUES (1, 1, ?, 0, ?, ?)', requests)
            base.commit()
        subject.read.cache_clear()
        return subject.read(self.path)

    def test_azures_packing_trace_is_read(self):
        trace = self.packing_trace(
            [(8, 0.5, 1.0), (7, -3.0, None), (7, -2.0, -1.0), (9, 0.0, 1.0)]
        )
        self.assertEqual([0, 43200], trace.arrive_s.tolist())
        self.assertEqual([math.inf, 86400], trace.leave_s.tolist())
        self.assertEqual([24, 1], trace.vcpus.tolist())
        self.assertEqual([65536, 1], trace.memory_mib.tolist())
        self.assertTrue(np.isnan(trace.cores_per_vcpu).all())

    def test_a_database_without_guests_is_refused_with_the_reason(self):
        with self.assertRaisesRegex(subject.BadTraceError, 'no guests in its table vm'):
            self.packing_trace([])
        for script, message in (
            ('DROP TABLE vmType', 'vmTypeId, core, memory'),
            ('DROP TABLE vm', 'vmTypeId, starttime, endtime'),
        ):
            with contextlib.closing(sqlite3.connect(self.path)) as base:
                base.executescript(script)
            subject.read.cache_clear()
            with self.assertRaisesRegex(subject.BadTraceError, message):
                subject.read(self.path)

    def test_a_damaged_database_is_reported(self):
        pathlib.Path(self.path).write_bytes(subject.SQLITE_MAGIC + b'x' * 200)
        subject.read.cache_clear()
        with self.assertRaisesRegex(subject.BadTraceError, 'packing trace'):
            subject.read(self.path)

    def test_errors_in_a_recording_name_file_line_and_remedy(self):
        head = OWN.splitlines()[0] + '\n'
        for text, line, message in (
            ('', '', 'no guests'),
            (head, '', 'no guests'),
            ('1,2,3\n', ':1', 'begin it with'),
            (head + '2,0,60,4096\n', ':2', 'add or remove'),
            (OWN + 'x,0,60,4096,\n', ':4', 'has to be a number'),
            (OWN + '2,nan,60,4096,\n', ':4', 'has to be a number'),
            (OWN + '2,-1,60,4096,\n', ':4', 'has to be a number'),
            (OWN + '2,60,60,4096,\n', ':4', 'correct leave_s'),
            (OWN + '2.5,0,60,4096,\n', ':4', 'correct vcpus'),
            (OWN + '2,0,60,0,\n', ':4', 'correct memory_mib'),
            (OWN + '2,0,60,4096,25\n', ':4', '0 to 1'),
        ):
            with self.subTest(message), self.assertRaises(subject.BadTraceError) as caught:
                self.read(text)
            self.assertTrue(str(caught.exception).startswith(f'{self.path}{line}: '))
            self.assertIn(message, str(caught.exception))

    def test_the_command_reports_errors_in_a_recording(self):
        with contextlib.redirect_stderr(io.StringIO()) as text, self.assertRaises(SystemExit):
            command.arguments(['--trace', self.path])
        self.assertIn(self.path, text.getvalue())

    def trace(self, rows, count=4):
        """Return the trace of a small cell with this number of hosts."""
        self.read('arrive_s,leave_s,vcpus,memory_mib,cores_per_vcpu\n' + ''.join(rows))
        cell = cells.cells()[3].shortened(count, 1800, 1800)
        cell.trace = self.path
        shape = hosts.Hosts(cell.shape, count, np.random.default_rng(1))
        return loads.Trace(cell, shape, 1)

    def test_guests_come_as_they_were_recorded(self):
        rows = [f'{30 * at},{30 * at + 900},{1 + at % 3},1024,0.{at % 3}5\n' for at in range(50)]
        trace = self.trace(rows)
        at = np.arange(50)
        self.assertEqual((30 * at).tolist(), trace.arrive_s.tolist())
        self.assertEqual((30 * at + 900).tolist(), trace.leave_s.tolist())
        self.assertEqual((1 + at % 3).tolist(), trace.vcpus.tolist())
        self.assertEqual({1024}, {*trace.memory_mib.tolist()})
        used = trace.wants.mean(1)
        self.assertLess(used[at % 3 == 0].mean(), used[at % 3 == 2].mean())

    def test_some_guests_come_of_more_than_the_region_holds(self):
        trace = self.trace(['0,,4,65536,\n'] * 1000)
        held = 0.72 * 4 * 512 / 64
        self.assertTrue(0.5 * held < len(trace.vcpus) < 1.5 * held)

    def test_a_guest_that_fits_on_no_host_or_comes_too_late_is_left_out(self):
        trace = self.trace(
            ['0,,4,1024,\n', '0,,400,1024,\n', '0,,4,1048576,\n', '9000,,4,1024,\n']
        )
        self.assertEqual([4], trace.vcpus.tolist())
