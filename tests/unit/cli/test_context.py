# SPDX-License-Identifier: Apache-2.0
"""Guests are found by the names that operators use."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.cli.context import find_guest

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
