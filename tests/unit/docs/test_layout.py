# SPDX-License-Identifier: Apache-2.0
"""Code that tests share is where CONTRIBUTING says, and not in one of the tests."""

import ast
import unittest

from tests.fixtures.checkout import TOP


def imported(text):
    """Yield all the names of which a module's imports consist, part by part."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from (node.module or '').split('.')
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield from alias.name.split('.')


class LayoutTest(unittest.TestCase):
    def test_no_test_module_is_imported_by_another(self):
        modules = {path.stem for path in TOP.glob('tests/**/test_*.py')}
        self.assertIn('test_layout', modules)
        for path in sorted(TOP.glob('tests/**/*.py')):
            imports = modules.intersection(imported(path.read_text(encoding='utf-8')))
            with self.subTest(str(path.relative_to(TOP))):
                self.assertEqual(set(), imports)

    def test_every_way_to_import_a_test_module_is_seen(self):
        for text in (
            'import tests.unit.test_layout',
            'from tests.unit import test_layout as other',
            'from .test_layout import LayoutTest',
            'def late():\n    from tests.unit.test_layout import LayoutTest',
        ):
            with self.subTest(text=text):
                self.assertIn('test_layout', imported(text))
