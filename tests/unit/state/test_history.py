# SPDX-License-Identifier: Apache-2.0
"""Moves are kept, one per line; damage costs only the lines that it affects."""

import errno
import os
import threading
from unittest import mock

from hypothesis import given, settings, strategies as st

from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import files
from nova_numa_pmc.state import history, state_files
from tests.cases.root import RootCase
from tests.fixtures import fake_host

NODES = st.lists(st.integers(0, 1023), max_size=4).map(tuple)
AMOUNTS = st.floats(0, 1e9)
TEXTS = st.text(st.characters(exclude_categories=('C', 'Z')), min_size=1, max_size=40)
PLACES = st.builds(
    history.PromisedPlace, NODES, NODES, NODES, st.sampled_from(('placed', 'pinned', 'floating'))
)
ENTRIES = st.builds(
    history.HistoryEntry,
    TEXTS,
    AMOUNTS,
    TEXTS,
    TEXTS,
    st.sampled_from(plan_records.KINDS),
    st.uuids().map(str).filter(lambda text: set(text) - set('0-')),
    TEXTS.filter(
        lambda text: '/' not in text and text not in ('.', '..') and len(text.encode()) < 200
    ),
    st.integers(0, 10**18),
    PLACES,
    PLACES,
    st.floats(-1e6, 1e6),
    AMOUNTS,
    st.integers(0, 1 << 50),
    AMOUNTS,
    st.sampled_from((history.DONE, history.SPLIT, history.BEGUN)),
    TEXTS,
)


def entry(number=1, mover=history.AGENT, batch='', result=history.DONE, why='why'):
    return history.HistoryEntry(
        '%08x' % number,
        1000.0,
        mover,
        batch,
        'move',
        fake_host.uuid_of(number),
        fake_host.name_of(number),
        7,
        history.PromisedPlace((0,), (0,)),
        history.PromisedPlace((1,), (1,)),
        1.0,
        5.0,
        4096,
        2.0,
        result,
        why,
    )


class FileTest(RootCase):
    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.root, 'var/lib'))
        self.path = os.path.join(self.root, history.DIRECTORY, history.FILE)

    def ids(self):
        entries, broken = history.read(self.root)
        return [int(entry.id, 16) for entry in entries], broken

    @settings(max_examples=60, deadline=None)
    @given(ENTRIES)
    def test_an_entry_is_read_as_it_was_written(self, one):
        history.append(one, self.root)
        self.assertEqual(one, history.read(self.root)[0][-1])

    def test_without_a_file_the_history_is_empty(self):
        self.assertEqual(([], 0), history.read(self.root))

    def test_any_user_may_read_a_history_whatever_the_umask(self):
        self.addCleanup(os.umask, os.umask(0o077))
        history.append(entry(1), self.root)
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

    def test_damaged_lines_cost_themselves_only(self):
        for damage in (b'{"id": ', b'\xff\xfe', b'[]', b'x' * 70000):
            history.append(entry(1), self.root)
            with open(self.path, 'ab') as file:
                file.write(damage)
            self.assertEqual((1, 1), (self.ids()[0][-1], self.ids()[1]))
        history.append(entry(2), self.root)
        self.assertEqual(([1, 1, 1, 1, 2], 0), self.ids())

    def test_a_full_file_system_is_reported_and_costs_one_entry(self):
        history.append(entry(1), self.root)
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with (
            mock.patch.object(files, 'replace_file', side_effect=full),
            self.assertRaises(StateError),
        ):
            history.append(entry(9), self.root)
        history.append(entry(2), self.root)
        self.assertEqual(([1, 2], 0), self.ids())

    def test_the_end_of_a_move_replaces_its_beginning(self):
        for number, result in (
            (1, history.BEGUN),
            (2, history.DONE),
            (1, history.PARTLY),
            (3, history.BEGUN),
        ):
            history.append(entry(number, result=result), self.root)
        entries, _ = history.read(self.root)
        self.assertEqual(
            [(2, history.DONE, True), (1, history.PARTLY, True), (3, history.BEGUN, True)],
            [(int(one.id, 16), one.result, one.is_in_effect) for one in entries],
        )

    def test_entries_of_another_format_are_no_moves(self):
        history.append(entry(1), self.root)
        with open(self.path, 'rb') as file:
            ours = file.read()
        for version in (b'3.0', b'5.0'):
            with open(self.path, 'wb') as file:
                file.write(ours.replace(b'4.0', version, 1))
            self.assertEqual(([], 1), self.ids())
        history.append(entry(2), self.root)
        self.assertEqual(([2], 0), self.ids())

    def test_two_writers_lose_none_of_each_others_moves(self):
        def write(first):
            for number in range(first, first + 20):
                history.append(entry(number, result=history.BEGUN), self.root)
                history.append(entry(number), self.root)

        writers = [threading.Thread(target=write, args=(first,)) for first in (100, 200)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        ids, broken = self.ids()
        self.assertEqual(([*range(100, 120), *range(200, 220)], 0), (sorted(ids), broken))

    def test_the_last_moves_are_kept(self):
        with mock.patch.object(history, 'ENTRIES_MAX', 3):
            for number in range(1, 6):
                history.append(entry(number), self.root)
        self.assertEqual(([3, 4, 5], 0), self.ids())

    def test_a_history_that_others_can_write_is_refused(self):
        history.append(entry(), self.root)
        os.chmod(self.path, 0o666)
        with self.assertRaises(StateError):
            history.read(self.root)
