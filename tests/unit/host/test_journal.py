# SPDX-License-Identifier: Apache-2.0
import os
import socket
import tempfile
import unittest

from nova_numa_pmc.host import journal


class JournalTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        os.mkdir(os.path.join(self.root, 'dev'))

    def serve(self):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(server.close)
        server.bind(os.path.join(self.root, 'dev/log'))
        server.setblocking(False)
        return server

    def test_a_line_of_syslog(self):
        server = self.serve()
        journal.log(self.root, journal.WARNING, 'guest é: 1 %s')
        self.assertRegex(server.recv(999).decode(),
                         r'^<28>\w{3} [ \d]\d [\d:]{8} nova-numa-pmc\[%d\]: guest é: 1 %%s$'
                         % os.getpid())

    def test_one_line_whatever_the_text(self):
        server = self.serve()
        journal.log(self.root, journal.INFO, 'a\nb\0\udcff')
        self.assertTrue(server.recv(999).decode().endswith('a\\nb\\x00\\udcff'))

    def test_long_lines_are_cut(self):
        server = self.serve()
        journal.log(self.root, journal.INFO, 'x' * 100000)
        self.assertEqual(8192, len(server.recv(100000)))

    def test_nobody_listens(self):
        journal.log(self.root, journal.INFO, 'lost')
        journal.log('/nonexistent' + 'x' * 200, journal.INFO, 'lost')
