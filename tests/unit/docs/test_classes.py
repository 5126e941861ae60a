# SPDX-License-Identifier: Apache-2.0
"""Class names are unique in the package, so that a name identifies its class."""

import ast
import collections
import unittest

from tests.unit.docs.glossary import PACKAGE


class ClassNamesTest(unittest.TestCase):
    def test_each_class_name_is_there_once(self):
        places = collections.defaultdict(list)
        for path in sorted(PACKAGE.rglob('*.py')):
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f'{path.relative_to(PACKAGE)}:{node.lineno}')
        self.assertTrue(places)
        self.assertEqual({}, {name: at for name, at in places.items() if len(at) > 1})
