# SPDX-License-Identifier: Apache-2.0
"""No module imports a name both when it runs and for annotations: ruff sees neither as wrong."""

import ast
import collections
import unittest

from tests.unit.docs.glossary import PACKAGE


def imported(body):
    """Yield the names that the imports of a module are known by, those under an ``if`` too."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name
        elif isinstance(node, ast.If):
            yield from imported(node.body)


class DoubleImportsTest(unittest.TestCase):
    def test_each_name_is_imported_once(self):
        for path in sorted(PACKAGE.rglob('*.py')):
            counts = collections.Counter(imported(ast.parse(path.read_text('utf-8')).body))
            with self.subTest(str(path.relative_to(PACKAGE))):
                self.assertEqual([], [name for name, count in counts.items() if count > 1])
