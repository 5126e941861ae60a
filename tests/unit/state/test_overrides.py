# SPDX-License-Identifier: Apache-2.0
"""Test the file of the operator's instructions about single guests, and what obeys it."""

import os

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import overrides
from tests.cases.root import RootCase
from tests.fixtures import fake_host

UUIDS = [fake_host.uuid_of(number) for number in range(4)]


class OverridesTest(RootCase):
    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.root, 'var/lib'))
        self.path = os.path.join(self.root, overrides.DIRECTORY, overrides.FILE)

    def put(self, number, what, name='g'):
        overrides.put(overrides.Override(UUIDS[number], what, name), self.root)

    def write_overrides(self, text):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, 'wb') as file:
            file.write(text)

    def whats(self):
        return {uuid: override.kind for uuid, override in overrides.read(self.root)[0].items()}

    def test_without_a_file_there_is_no_override(self):
        self.assertEqual(({}, []), overrides.read(self.root))
        self.assertIsNone(overrides.drop(UUIDS[0], self.root))
        self.assertEqual({}, self.whats())

    def test_the_last_override_of_a_guest_counts(self):
        self.put(0, model.PIN, 'web 1')
        self.put(1, model.IGNORE)
        self.put(0, model.IGNORE, 'web 1')
        self.assertEqual({UUIDS[0]: 'ignore', UUIDS[1]: 'ignore'}, self.whats())
        self.assertEqual('web 1', overrides.drop(UUIDS[0], self.root).name)
        with open(self.path) as file:
            self.assertEqual('%s ignore g\n' % UUIDS[1], file.read())

    def test_lines_that_are_not_an_override_are_reported_and_never_overwritten(self):
        good = '%s pin web 1\n' % UUIDS[0]
        for line in (
            'x pin g',
            UUIDS[1],
            UUIDS[1] + ' pin',
            UUIDS[1] + ' hold g',
            UUIDS[1] + ' pin a/b',
            UUIDS[1] + '  pin g',
            UUIDS[1] + ' pin \udcff',
        ):
            with self.subTest(line):
                text = ('# by hand\n\n%s\n%s' % (line, good)).encode('utf-8', 'surrogateescape')
                self.write_overrides(text)
                overrides_, [problem] = overrides.read(self.root)
                self.assertEqual([UUIDS[0]], list(overrides_))
                self.assertIn('line 3', problem)
                with self.assertRaises(StateError):
                    self.put(2, model.PIN)
                with open(self.path, 'rb') as file:
                    self.assertEqual(text, file.read())

    def test_a_file_of_overrides_that_others_can_write_is_refused(self):
        self.put(0, model.PIN)
        os.chmod(self.path, 0o666)
        with self.assertRaises(StateError):
            overrides.read(self.root)

    def test_guests_are_marked_by_uuid(self):
        self.put(0, model.PIN)
        guests = [model.Guest(uuid, 'g', 1, 1) for uuid in UUIDS[:2]]
        marked, problems = overrides.with_overrides(guests, self.root)
        self.assertEqual((['pin', ''], []), ([guest.override for guest in marked], problems))
