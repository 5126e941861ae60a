# SPDX-License-Identifier: Apache-2.0
"""Docstrings and comments refer to things that exist."""

import ast
import re
import unittest

from tests.fixtures.checkout import TOP

PACKAGE = TOP / 'nova_numa_pmc'
ROLE = re.compile(r':(?:mod|class|func|meth|attr|data|exc):`~?([\w.]+)(?:\(\))?`')
#: Roots of names that are defined elsewhere.
OTHERS = {
    'subprocess',
    'input',
    'open',
    'print',
    'logging',
    'os',
    'cfg',
    'select',
    'libvirt',
    'nova',
}


def defined():
    """Return every name that the package defines: modules, classes, functions, variables."""
    names = {'nova_numa_pmc'}
    for path in PACKAGE.rglob('*.py'):
        names.add(path.parent.name if path.stem == '__init__' else path.stem)
        for node in ast.walk(ast.parse(path.read_text('utf-8'))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.arg)):
                names.add(node.name if not isinstance(node, ast.arg) else node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.alias):
                names.add(node.asname or node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.update(re.findall(r'^\w+$', node.value))
    return names


class ReferencesTest(unittest.TestCase):
    def test_each_name_referred_to_by_a_role_exists(self):
        names = defined()
        for path in sorted(PACKAGE.rglob('*.py')):
            for reference in ROLE.findall(path.read_text('utf-8')):
                parts = reference.split('.')
                if parts[0] in OTHERS:
                    continue
                with self.subTest(file=str(path.relative_to(TOP)), reference=reference):
                    self.assertEqual([], [part for part in parts if part not in names])
