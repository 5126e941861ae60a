# SPDX-License-Identifier: Apache-2.0
"""Nova's CPU sets are read as Nova reads them, from the files of the service that runs."""

import os
import shutil
import unittest

from nova_numa_pmc.host import nova_conf
from tests.cases.root import RootCase
from tests.fixtures import services

SECOND = 10**9
CONF = 'etc/nova/nova.conf'


class ReaderTest(RootCase):
    def setUp(self):
        super().setUp()
        self.reader = nova_conf.NovaCpuSetsReader(self.root)

    def write_conf(self, text, path=CONF):
        self.write(path, text)

    def start_in_container(self, pid, *arguments):
        command = ('/usr/bin/nova-compute', *arguments)
        services.add_process(self.root, pid, command, inside='image')

    def read(self, at_s=0):
        sets, problems = self.reader.read(at_s * SECOND)
        return sets.shared, sets.dedicated, problems

    def test_without_a_file_no_set_is_known(self):
        self.assertEqual((None, None, ()), self.read())

    def test_the_shared_and_the_dedicated_set_are_read(self):
        self.write_conf('[compute]\ncpu_shared_set = 0-3,^2\ncpu_dedicated_set = 4-5\n')
        self.assertEqual(({0, 1, 3}, {4, 5}, ()), self.read())

    def test_the_set_of_older_releases_takes_precedence_over_the_shared_one(self):
        self.write_conf('[DEFAULT]\nvcpu_pin_set = 4-6,^5\n')
        self.assertEqual(({4, 6}, None, ()), self.read())
        self.write_conf('[DEFAULT]\nvcpu_pin_set = 4-6\n[compute]\ncpu_shared_set = 0-3\n')
        self.assertEqual(({4, 5, 6}, None, ()), self.read(61))

    def test_a_file_that_has_changed_is_read_again_after_a_minute(self):
        self.write_conf('[compute]\ncpu_shared_set = 0-3\n')
        self.read()
        self.write_conf('[compute]\ncpu_shared_set = 0-1,4\n')
        self.assertEqual([{0, 1, 2, 3}, {0, 1, 4}], [self.read(30)[0], self.read(61)[0]])
        os.unlink(os.path.join(self.root, CONF))
        self.assertIsNone(self.read(122)[0])

    def test_novas_files_in_a_container_are_found_by_its_process(self):
        self.write_conf('[compute]\ncpu_shared_set = 3\n', 'image/etc/nova/other.conf')
        self.start_in_container(71, '--config-file', '/etc/nova/other.conf')
        self.assertEqual({3}, self.read()[0])

    def test_the_sets_stay_known_while_novas_container_is_restarted(self):
        self.write_conf('[compute]\ncpu_shared_set = 3\n', 'image/etc/nova/nova.conf')
        self.start_in_container(71)
        self.assertEqual({3}, self.read()[0])
        shutil.rmtree(os.path.join(self.root, 'proc/71'))
        self.assertEqual({3}, self.read(61)[0])
        self.write_conf('[compute]\ncpu_shared_set = 4\n', 'image/etc/nova/nova.conf')
        self.start_in_container(72)
        self.assertEqual({4}, self.read(122)[0])

    def test_nova_that_starts_later_is_found_after_a_minute(self):
        self.read()
        self.write_conf('[compute]\ncpu_shared_set = 3\n', 'image/etc/nova/nova.conf')
        self.start_in_container(71)
        self.assertEqual([None, {3}], [self.read(30)[0], self.read(61)[0]])

    def test_nova_that_is_started_again_with_other_files_is_found(self):
        self.write_conf('[compute]\ncpu_shared_set = 0-3\n')
        self.write_conf('[compute]\ncpu_shared_set = 8\n', 'etc/nova/other.conf')
        command = ('/usr/bin/nova-compute', '--config-file', '/etc/nova/other.conf')
        services.add_process(self.root, 71, command)
        self.assertEqual({8}, self.read()[0])
        shutil.rmtree(os.path.join(self.root, 'proc/71'))
        self.assertEqual({8}, self.read(700)[0])  # while it is stopped
        services.add_process(self.root, 72, command[:1])
        self.assertEqual([{8}, {0, 1, 2, 3}], [self.read(730)[0], self.read(761)[0]])

    def test_a_set_that_cannot_be_used_is_a_problem_and_unknown(self):
        for text in (
            '[compute]\ncpu_shared_set = a-b\n',
            '[compute]\ncpu_shared_set = ^3\n',
            '[DEFAULT]\nvcpu_pin_set = x\n[compute]\ncpu_shared_set = 3\n',
            '[compute\n',
            b'\xff\xfe',
        ):
            with self.subTest(text=text):
                self.write_conf(text)
                self.reader = nova_conf.NovaCpuSetsReader(self.root)
                shared, dedicated, problems = self.read()
                self.assertEqual((None, None), (shared, dedicated))
                self.assertIn(CONF, ' '.join(problems))


class ParseSetTest(unittest.TestCase):
    def test_a_set_is_read_as_nova_reads_it(self):
        for text, expected in (
            ('2-5,^3-4', {2, 5}),
            ('4-6,', {4, 5, 6}),
            (',4,,5', {4, 5}),
            ('^5,4-6', {4, 6}),
            (' 4 - 5 , ^ 4', {5}),
            ('16383', {16383}),
        ):
            with self.subTest(text):
                self.assertEqual(expected, nova_conf.parse_set('x', text))
