# SPDX-License-Identifier: Apache-2.0
"""Decisions are numbered, dated and listed, and have the same three parts."""

import datetime
import re
import unittest

from tests.fixtures.checkout import TOP

INDEX = TOP / 'doc/source/contributor/decisions/index.rst'
PAGES = sorted((TOP / 'doc/source/contributor/decisions').glob('[0-9]*.rst'))


class DecisionsTest(unittest.TestCase):
    def test_decisions_are_numbered_without_a_gap(self):
        self.assertEqual(list(range(1, len(PAGES) + 1)), [int(path.name[:4]) for path in PAGES])

    def test_each_decision_has_a_date_and_the_three_parts(self):
        for path in PAGES:
            with self.subTest(path.name):
                text = path.read_text(encoding='utf-8')
                date = re.search(r'^:Date: (.*)$', text, re.M).group(1)
                self.assertEqual(date, datetime.date.fromisoformat(date).isoformat())
                self.assertEqual(
                    ['Context', 'Decision', 'Consequence'],
                    re.findall(r'\n\n(.+)\n=+\n', text)[-3:],
                )

    def test_all_decisions_are_listed(self):
        self.assertEqual(
            [path.stem for path in PAGES],
            re.findall(r'^   (\d{4}-\S+)$', INDEX.read_text(encoding='utf-8'), re.M),
        )

    def test_the_index_names_each_decision_that_is_replaced(self):
        replaced = [
            (path.stem, newer)
            for path in PAGES
            for newer in re.findall(
                r'^:Replaced by: :doc:`([^`]+)`', path.read_text(encoding='utf-8'), re.M
            )
        ]
        self.assertEqual(
            replaced,
            re.findall(
                r'^\* :doc:`([^`]+)` by :doc:`([^`]+)`$', INDEX.read_text(encoding='utf-8'), re.M
            ),
        )
