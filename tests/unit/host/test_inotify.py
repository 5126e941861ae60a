# SPDX-License-Identifier: Apache-2.0
"""Changes in directories are noticed, on this kernel."""

from __future__ import annotations

import errno
import os

from nova_numa_pmc.host import inotify
from tests.cases.root import RootCase

ALL = inotify.MODIFY | inotify.CREATE | inotify.DELETE | inotify.MOVED_TO


class InotifyTest(RootCase):
    def setUp(self):
        super().setUp()
        self.inotify = inotify.Inotify()
        self.addCleanup(self.inotify.close)

    def test_each_kind_of_change_is_heard(self):
        self.write('before', 'x')
        watch = self.inotify.add(self.root, ALL)
        self.assertEqual([], self.inotify.read())
        self.write('before', 'y')
        os.rename(os.path.join(self.root, 'before'), os.path.join(self.root, 'after'))
        os.mkdir(os.path.join(self.root, 'vcpu1'))
        os.unlink(os.path.join(self.root, 'after'))
        heard = self.inotify.read()
        self.assertEqual({watch}, {event.watch for event in heard})
        self.assertIn((inotify.MODIFY, 'before'), [event[1:] for event in heard])
        self.assertEqual(
            [
                (inotify.MOVED_TO, 'after'),
                (inotify.CREATE | inotify.IS_DIRECTORY, 'vcpu1'),
                (inotify.DELETE, 'after'),
            ],
            [event[1:] for event in heard][-3:],
        )
        self.assertEqual([], self.inotify.read())

    def test_more_events_than_one_reading_holds_are_heard(self):
        self.inotify.add(self.root, inotify.CREATE)
        names = ['%s-%d' % ('n' * 200, at) for at in range(400)]
        for name in names:
            self.write(name, 'x')
        self.assertEqual(names, [event.name for event in self.inotify.read()])

    def test_a_directory_that_goes_or_is_removed_is_ignored_from_then_on(self):
        below = os.path.join(self.root, 'below')
        os.mkdir(below)
        watch = self.inotify.add(below, ALL)
        os.rmdir(below)
        self.assertTrue(self.inotify.read()[-1].mask & inotify.IGNORED)
        self.inotify.remove(watch)
        watch = self.inotify.add(self.root, ALL)
        self.inotify.remove(watch)
        self.write('file', 'x')
        self.assertEqual([(watch, inotify.IGNORED)], [event[:2] for event in self.inotify.read()])

    def test_a_file_or_nothing_in_place_of_a_directory_is_an_error(self):
        self.write('file', 'x')
        for name, number in (('none', errno.ENOENT), ('file', errno.ENOTDIR)):
            with self.assertRaises(OSError) as caught:
                self.inotify.add(os.path.join(self.root, name), ALL)
            self.assertEqual(number, caught.exception.errno)
            self.assertIn(name, str(caught.exception))
