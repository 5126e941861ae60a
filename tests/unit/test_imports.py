# SPDX-License-Identifier: Apache-2.0
"""Rules on imports that keep the core pure and the hook cheap."""

import ast
import pathlib
import subprocess
import sys
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
#: No files, clock, randomness or logging can be had from these.
PURE = {
    '__future__',
    'bisect',
    'collections',
    'fractions',
    'functools',
    'heapq',
    'itertools',
    'math',
    'operator',
    'collections.abc',
    'typing',
}  # for types only
#: Each multiplies the hook's process time; `make bench-hook` measures it.
DEAR = {
    'argparse',
    'collections',
    'dataclasses',
    'enum',
    'heapq',
    'json',
    'logging',
    'oslo_config',
    'pathlib',
    're',
    'socket',
    'subprocess',
    'threading',
    'typing',
    'xml.etree',
}


def imported(path):
    """Yield (line, module) of every import in a file, at any level."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module in ('nova_numa_pmc', 'nova_numa_pmc.core'):
                yield from ((node.lineno, f'{node.module}.{alias.name}') for alias in node.names)
            else:
                yield node.lineno, node.module


class ImportTest(unittest.TestCase):
    def test_core_imports_pure_modules_and_the_model_only(self):
        for path in sorted(TOP.glob('nova_numa_pmc/core/**/*.py')):
            for line, name in imported(path):
                with self.subTest(f'{path.relative_to(TOP)}:{line} {name}'):
                    self.assertTrue(
                        name in PURE
                        or name.startswith('nova_numa_pmc.core.')
                        or name
                        in ('nova_numa_pmc.model', 'nova_numa_pmc.record', 'nova_numa_pmc.sample')
                    )

    def test_the_hook_imports_nothing_dear(self):
        script = (
            'import sys; sys.path.insert(0, sys.argv[1])\n'
            'import nova_numa_pmc.hook\n'
            'import nova_numa_pmc.core.placement, nova_numa_pmc.settling  # as it goes\n'
            'print(*sys.modules)'
        )
        done = subprocess.run(
            [sys.executable, '-I', '-S', '-c', script, str(TOP)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        self.assertEqual('', done.stderr)
        self.assertEqual(set(), DEAR & set(done.stdout.split()))
