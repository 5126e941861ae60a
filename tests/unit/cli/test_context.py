# SPDX-License-Identifier: Apache-2.0
"""Guests are found by the names that operators use."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.cli.context import UnknownGuest, find_guest

#: (uuid, name, id): the name of one guest is the id of another.
GUESTS = [
    model.Guest(uuid, name, 1, 1, id=number)
    for uuid, name, number in (
        ('u1', 'web-1', 1),
        ('u2', 'web-2', 2),
        ('u3', '2', 3),
        ('u4', 'database', None),
    )
]


class FindTest(unittest.TestCase):
    def test_a_guest_is_looked_up_by_name_then_uuid_then_id(self):
        for text, uuid in (('web-2', 'u2'), ('u1', 'u1'), ('2', 'u3'), ('1', 'u1'), ('3', 'u3')):
            with self.subTest(text):
                self.assertEqual(uuid, find_guest(text, GUESTS).uuid)

    def test_an_unknown_guest_is_answered_with_similar_names(self):
        for text, running, text_part in (
            ('wbe-1', GUESTS, 'similar names: web-1'),
            ('base', GUESTS, 'similar names: database'),
            ('None', GUESTS, 'guests here: 2, database, web-1, web-2$'),
            ('', GUESTS, 'guests here: 2'),
            ('zz', [], 'guests here: none'),
            ('zz', [GUESTS[0]._replace(name='g%02d' % n) for n in range(20)], 'g07 and 12 more'),
        ):
            with self.subTest(text), self.assertRaisesRegex(UnknownGuest, text_part):
                find_guest(text, running)
        with self.assertRaisesRegex(UnknownGuest, 'a.xml: damaged'):
            find_guest('zz', [], ['a.xml: damaged'])
