# SPDX-License-Identifier: Apache-2.0
"""Test the rules for imports that keep the core pure and the hook fast."""

import ast
import pathlib
import shutil
import subprocess
import unittest

from tests.fixtures.checkout import TOP

#: These give no access to files, clocks, randomness or logging.
PURE = {
    '_operator',  # the C part of operator
    '__future__',
    'bisect',
    'collections',
    'collections.abc',
    'dataclasses',
    'fractions',
    'functools',
    'heapq',
    'itertools',
    'json',
    'math',
    'operator',
    'sys',  # for the names in the modules of records
    'typing',  # for types only
}
#: Modules of the package that the core may import; the same rule applies to them.
BELOW_CORE = ('model', 'record', 'exceptions', 'cpulist', 'json_values')
#: These need Nova.
NOVA_SIDE = ('nova_numa_pmc.scheduler', 'nova_numa_pmc.api', 'nova_numa_pmc.compute.monitor')
#: Import the named modules; print which failed for reasons other than a missing third-party
#: package.
IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or 'nova_numa_pmc').startswith('nova_numa_pmc'):
            print(name, repr(error))
    except Exception as error:
        print(name, repr(error))
"""


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


def module_name(path):
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(TOP).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def host_side():
    """Return the names of all modules that hosts without Nova import."""
    names = (module_name(path) for path in sorted(TOP.glob('nova_numa_pmc/**/*.py')))
    return [name for name in names if not name.startswith(NOVA_SIDE)]


def oldest_python():
    """Return the path of a Python 3.9, or ``None``; pyenv's shim may lead nowhere."""
    pyenv = pathlib.Path('~/.pyenv/versions').expanduser()
    interpreters = map(str, sorted(pyenv.glob('3.9*/bin/python3.9')))
    for path in (shutil.which('python3.9'), *interpreters):
        if path and subprocess.run([path, '-I', '-c', ''], capture_output=True).returncode == 0:
            return path
    return None


class ImportTest(unittest.TestCase):
    def test_core_and_what_is_below_it_import_pure_modules_only(self):
        below = [TOP / f'nova_numa_pmc/{name}.py' for name in BELOW_CORE]
        allowed = PURE | {module_name(path) for path in below}
        for path in (*below, *sorted(TOP.glob('nova_numa_pmc/core/**/*.py'))):
            for line, name in imported(path):
                with self.subTest(f'{path.relative_to(TOP)}:{line} {name}'):
                    self.assertTrue(name in allowed or name.startswith('nova_numa_pmc.core.'))

    def test_the_oldest_python_imports_what_runs_on_hosts(self):
        """If a library is missing, a module is compiled, and run as far as its import."""
        python = oldest_python()
        if python is None:
            self.skipTest('there is no Python 3.9')
        done = subprocess.run(
            [python, '-I', '-B', '-c', IMPORT_ALL, str(TOP), *host_side()],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        self.assertEqual(('', '', 0), (done.stdout, done.stderr, done.returncode))
