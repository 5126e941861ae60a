# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole or not at all, and one of the kernel is read to its end."""

import os
import shutil
import stat
import tempfile
import unittest

from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import files
from tests.cases.root import RootCase


class ReplaceTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.path = os.path.join(self.directory, 'file')
        self.temporary = self.path + '.tmp'

    def replace(self, data=b'new', **how):
        files.replace_file(self.path, data, self.temporary, **how)

    def test_a_file_is_made_and_replaced(self):
        for data in (b'old', b'new' * 100000, b''):
            self.replace(data)
            with open(self.path, 'rb') as file:
                self.assertEqual(data, file.read())
            self.assertEqual(['file'], os.listdir(self.directory))

    def test_a_replaced_file_has_its_mode_whatever_the_umask(self):
        self.addCleanup(os.umask, os.umask(0o077))
        for mode in (0o644, 0o755):
            self.replace(mode=mode)
            self.assertEqual(mode, stat.S_IMODE(os.stat(self.path).st_mode))

    def test_a_temporary_file_that_a_crash_left_is_removed(self):
        os.symlink('elsewhere', self.temporary)
        self.replace()
        self.assertEqual(['file'], os.listdir(self.directory))
        self.assertFalse(os.path.islink(self.path))


class ReadTest(RootCase):
    def test_a_file_is_read_to_its_end_within_bounds(self):
        path = os.path.join(self.root, 'long')
        self.write('long', 'x' * 200000)
        self.assertEqual(200000, len(files.read_kernel_file(path)))
        self.write('long', 'x' * (2 << 20))
        with self.assertRaises(OSError):
            files.read_kernel_file(path)


class BootTest(unittest.TestCase):
    def test_the_kernels_boot_id_is_read_or_an_error_says_why(self):
        self.assertRegex(files.read_boot_id(), '^[0-9a-f-]{36}$')
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        with self.assertRaisesRegex(StateError, 'boot_id'):
            files.read_boot_id(directory)
