# SPDX-License-Identifier: Apache-2.0
"""Test the tool that runs the unit tests, on suites of its own."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[3] / 'tools' / 'unit-tests'
CONFIG = '[DEFAULT]\ntest_path=./tests/unit\ntop_dir=./\n'
MODULE = """import os, unittest
class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        {set_up}
    def test_one(self):
        pass
"""


class TestUnitTests(unittest.TestCase):
    def run_suite(self, set_up):
        """Run a suite whose second module is set up so; return the exit code and the output."""
        with tempfile.TemporaryDirectory() as top:
            folder = pathlib.Path(top, 'tests', 'unit')
            folder.mkdir(parents=True)
            pathlib.Path(top, '.stestr.conf').write_text(CONFIG)
            for init in (folder, folder.parent):
                (init / '__init__.py').touch()
            (folder / 'test_a.py').write_text(MODULE.format(set_up='pass'))
            (folder / 'test_b.py').write_text(MODULE.format(set_up=set_up))
            done = subprocess.run(
                [sys.executable, TOOL],
                cwd=top,
                env={**os.environ, 'TMPDIR': top},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return done.returncode, done.stdout

    def test_a_run_fails_and_names_the_tests_that_a_dead_worker_left_out(self):
        code, output = self.run_suite('os._exit(0)')
        self.assertEqual(1, code, output)
        self.assertIn('\ntests.unit.test_b.Test.test_one\n', output)

    def test_a_run_succeeds_if_all_tests_passed(self):
        self.assertEqual(0, self.run_suite('pass')[0])
