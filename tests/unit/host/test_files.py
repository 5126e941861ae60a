# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole or not at all, and one of the kernel is read to its end."""

import errno
import os
import shutil
import stat
import tempfile
import unittest
from unittest import mock

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

    def test_a_failed_replacement_leaves_no_temporary_file(self):
        os.mkdir(self.path)
        with self.assertRaises(OSError):
            self.replace()
        self.assertEqual(['file'], os.listdir(self.directory))

    def test_the_directory_of_a_durable_file_is_written_once_the_file_is_in_place(self):
        synced = []

        def record(fd):
            synced.append((os.readlink('/proc/self/fd/%d' % fd), os.listdir(self.directory)))

        directory_fd = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory_fd)
        with mock.patch.object(os, 'fsync', record):
            self.replace(durable=False)
            self.assertEqual([], synced)
            os.unlink(self.path)
            self.replace()
            os.unlink(self.path)
            files.replace_file('file', b'new', 'file.tmp', directory_fd=directory_fd)
        written = [(self.temporary, ['file.tmp']), (self.directory, ['file'])]
        self.assertEqual(2 * written, synced)

    def test_a_directory_that_its_file_system_cannot_write_does_not_matter(self):
        def fail(fd):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(code, os.strerror(code))

        with mock.patch.object(os, 'fsync', fail):
            code = errno.EINVAL
            self.replace()
            code = errno.EIO
            with self.assertRaises(OSError):
                self.replace()


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
