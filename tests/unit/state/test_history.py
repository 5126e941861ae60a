# SPDX-License-Identifier: Apache-2.0
"""Moves are kept, one per line; damage costs only the lines that it affects."""

import errno
import os
import random
import threading
import unittest
from unittest import mock

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import history, state_files
from tests.cases.root import RootCase
from tests.fixtures import fake_host

NODES = st.lists(st.integers(0, 1023), max_size=4).map(tuple)
AMOUNTS = st.floats(0, 1e9)
TEXTS = st.text(st.characters(exclude_categories=('C', 'Z')), min_size=1, max_size=40)
PLACES = st.builds(
    history.PromisedPlace, NODES, NODES, NODES, st.sampled_from(('placed', 'pinned', 'floating'))
)
PARTS = st.builds(
    history.HistoryPart,
    st.uuids().map(str).filter(lambda text: set(text) - set('0-')),
    TEXTS.filter(
        lambda text: '/' not in text and text not in ('.', '..') and len(text.encode()) < 200
    ),
    st.integers(0, 10**18),
    PLACES,
    PLACES,
    st.integers(0, 1 << 50),
)
ENTRIES = st.builds(
    history.HistoryEntry,
    TEXTS,
    AMOUNTS,
    TEXTS,
    TEXTS,
    st.sampled_from(plan_records.KINDS),
    st.lists(PARTS, min_size=1, max_size=3).map(tuple),
    st.floats(-1e6, 1e6),
    AMOUNTS,
    st.integers(0, 1 << 50),
    AMOUNTS,
    st.sampled_from(history.RESULTS),
    TEXTS,
)


def entry(number=1, mover=history.AGENT, batch='', result=history.DONE, why='why'):
    part = history.HistoryPart(
        fake_host.uuid_of(number),
        fake_host.name_of(number),
        7,
        history.PromisedPlace((0,), (0,)),
        history.PromisedPlace((1,), (1,)),
        4096,
    )
    return history.HistoryEntry(
        '%08x' % number, 1000.0, mover, batch, 'move', (part,), 1.0, 5.0, 4096, 2.0, result, why
    )


class LineTest(unittest.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(ENTRIES)
    def test_an_entry_is_read_as_it_was_written(self, one):
        line = history.encode(one)
        self.assertEqual((1, True), (line.count(b'\n'), line.endswith(b'\n')))
        self.assertEqual(one, history.decode(line))

    def test_mutated_lines_are_read_or_refused(self):
        chance, line = random.Random(5), history.encode(entry())
        for _ in range(2000):
            mutated = bytearray(line)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(mutated))
                mutated[at : at + chance.randrange(3)] = bytes(
                    chance.randrange(256) for _ in range(chance.randrange(3))
                )
            try:
                history.decode(bytes(mutated))
            except ValueError:
                pass


class FileTest(RootCase):
    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.root, 'var/lib'))
        self.path = os.path.join(self.root, history.DIRECTORY, history.FILE)

    def ids(self):
        entries, broken = history.read(self.root)
        return [int(entry.id, 16) for entry in entries], broken

    def test_without_a_file_the_history_is_empty(self):
        self.assertEqual(([], 0), history.read(self.root))

    def test_any_user_may_read_a_history_whatever_the_umask(self):
        self.addCleanup(os.umask, os.umask(0o077))
        history.append(entry(1), self.root)
        self.assertEqual(0o644, os.stat(self.path).st_mode & 0o777)
        os.chmod(self.path, 0o600)  # as an earlier release left it
        history.append(entry(2), self.root)
        self.assertEqual(0o644, os.stat(self.path).st_mode & 0o777)

    def test_a_history_that_only_root_may_read_is_not_to_be_removed(self):
        history.append(entry(1), self.root)
        with state_files.StateDirectory(os.path.dirname(self.path), create=False) as directory:
            with (
                mock.patch.object(os, 'open', side_effect=PermissionError(errno.EACCES, 'denied')),
                self.assertRaisesRegex(StateError, 'denied: run as root'),
            ):
                directory.read(history.FILE, 1 << 20)
            os.unlink(self.path)
            os.symlink('elsewhere', self.path)
            with self.assertRaisesRegex(StateError, 'remove it'):
                directory.read(history.FILE, 1 << 20)

    def test_torn_and_foreign_lines_cost_themselves_only(self):
        history.append(entry(1), self.root)
        for torn in (history.encode(entry(9))[:40], b'\xff\xfe', b'[]\n\n', b'x' * 70000):
            with open(self.path, 'ab') as file:
                file.write(torn)
            history.append(entry(2), self.root)
        self.assertEqual(([1, 2, 2, 2, 2], 4), self.ids())

    def test_a_full_file_system_is_reported_and_costs_one_line(self):
        history.append(entry(1), self.root)
        write = os.write
        with (
            mock.patch.object(os, 'write', lambda fd, line: write(fd, line[:40])),
            self.assertRaisesRegex(StateError, '%s: its file system is full' % self.path),
        ):
            history.append(entry(9), self.root)
        history.append(entry(2), self.root)
        self.assertEqual(([1, 2], 1), self.ids())

    def test_the_last_line_of_a_move_counts(self):
        for number, result in (
            (1, history.BEGUN),
            (2, history.DONE),
            (1, history.PARTLY),
            (3, history.BEGUN),
        ):
            history.append(entry(number, result=result), self.root)
        entries, _ = history.read(self.root)
        self.assertEqual(
            [(1, history.PARTLY, True), (2, history.DONE, True), (3, history.BEGUN, True)],
            [(int(one.id, 16), one.result, one.is_in_effect) for one in entries],
        )

    def test_a_history_rotates_and_both_files_are_read(self):
        long = 'x' * 900
        for number in range(1, 1500):
            history.append(entry(number, why=long), self.root)
        self.assertLessEqual(os.path.getsize(self.path), history.ROTATE_BYTES)
        ids, broken = self.ids()
        self.assertEqual((1499, 0), (ids[-1], broken))
        self.assertEqual(list(range(ids[0], 1500)), ids)
        names = sorted(os.listdir(os.path.dirname(self.path)))
        self.assertEqual(['history', 'history.1', 'history.lock'], names)

    def test_two_writers_at_the_time_of_a_rotation_lose_nothing(self):
        long = 'x' * 900
        number = 1
        while not os.path.exists(self.path) or os.path.getsize(self.path) < (
            history.ROTATE_BYTES - 2000
        ):
            history.append(entry(number, why=long), self.root)
            number += 1
        rename = os.rename
        second = threading.Thread(
            target=lambda: history.append(entry(number + 1, why=long), self.root)
        )

        def rename_later(*args, **options):
            if not second.ident:
                second.start()
                second.join(0.1)  # the other one rotates, too, unless it has to wait
            rename(*args, **options)

        with mock.patch.object(os, 'rename', rename_later):
            history.append(entry(number, why=long), self.root)
            if not second.ident:
                second.start()
            second.join()
        ids, broken = self.ids()
        self.assertEqual((list(range(1, number + 2)), 0), (sorted(ids), broken))

    def test_a_history_that_others_can_write_is_refused(self):
        history.append(entry(), self.root)
        os.chmod(self.path, 0o666)
        with self.assertRaises(StateError):
            history.read(self.root)
