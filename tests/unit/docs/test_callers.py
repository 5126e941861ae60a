# SPDX-License-Identifier: Apache-2.0
"""Each public function of a module has a caller in the package.

vulture looks for bare names, so that it takes a function for used if another module has one of
that name which is called.
"""

import ast
import re
import unittest

from tests.fixtures.checkout import TOP

PACKAGE = TOP / 'nova_numa_pmc'
#: Functions that are called by others, with the reason.
CALLED_BY_OTHERS = {
    'nova_numa_pmc.api.extra_spec_validators.register': 'Nova calls it',
    'nova_numa_pmc.scheduler.nova_weighers.weigh': 'explain_hosts imports its module by name',
}
#: What nova-numa-rebalance calls in the module of a command.
OF_COMMANDS = {'configure', 'run'}


def modules():
    """Yield the name and syntax tree of each module of the package."""
    for path in sorted(PACKAGE.rglob('*.py')):
        parts = path.relative_to(TOP).with_suffix('').parts
        name = '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)
        yield name, ast.parse(path.read_text(encoding='utf-8'))


def functions(name, tree):
    """Return the qualified names of a module's public functions."""
    return {
        f'{name}.{node.name}'
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith('_')
    }


def used_by(name, tree):
    """Return qualified names that a module uses: of its own functions and those of others."""
    origins = {
        alias.asname or alias.name: f'{node.module}.{alias.name}'
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    used = set(origins.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(f'{origins.get(node.value.id)}.{node.attr}')
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(f'{name}.{node.id}')
    return used


def entry_points():
    """Return the qualified names in setup.cfg and in the hook's script."""
    setup = (TOP / 'setup.cfg').read_text(encoding='utf-8')
    hook = (TOP / 'hooks' / 'qemu').read_text(encoding='utf-8')
    pairs = re.findall(r'= (nova_numa_pmc[\w.]*):(\w+)$', setup, re.MULTILINE)
    pairs += re.findall(r'^from (nova_numa_pmc[\w.]*) import (\w+)$', hook, re.MULTILINE)
    return {f'{module}.{name}' for module, name in pairs}


class CallersTest(unittest.TestCase):
    def test_each_public_function_of_a_module_has_a_caller(self):
        defined, used = set(), entry_points() | set(CALLED_BY_OTHERS)
        for name, tree in modules():
            defined |= functions(name, tree)
            used |= used_by(name, tree)
            if name.startswith('nova_numa_pmc.cli.commands.'):
                used |= {f'{name}.{function}' for function in OF_COMMANDS}
        self.assertEqual(set(), defined - used)
        self.assertEqual(set(), set(CALLED_BY_OTHERS) - defined)

    def test_a_use_of_a_function_of_the_same_name_elsewhere_does_not_count(self):
        tree = ast.parse(
            'from nova_numa_pmc.state import pause\n'
            'from nova_numa_pmc import files as f\n'
            'def end(): return f.read(pause.end)\n'
            'def read(): return end()\n'
        )
        used = used_by('nova_numa_pmc.own', tree)
        self.assertLess({'nova_numa_pmc.files.read', 'nova_numa_pmc.state.pause.end'}, used)
        self.assertEqual({'nova_numa_pmc.own.read'}, functions('nova_numa_pmc.own', tree) - used)
