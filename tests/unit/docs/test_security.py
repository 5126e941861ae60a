# SPDX-License-Identifier: Apache-2.0
"""SECURITY.rst names tests that exist."""

import re
import unittest

from tests.fixtures.checkout import TOP


class SecurityTest(unittest.TestCase):
    def test_each_test_that_the_security_page_names_exists(self):
        named = set(re.findall(r'``(test_\w+)``', (TOP / 'SECURITY.rst').read_text('utf-8')))
        texts = [path.read_text('utf-8') for path in (TOP / 'tests').rglob('test_*.py')]
        defined = {name for text in texts for name in re.findall(r'def (test_\w+)\(', text)}
        self.assertGreater(len(named), 20)
        self.assertEqual(set(), named - defined)
