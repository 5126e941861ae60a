# SPDX-License-Identifier: Apache-2.0
"""Test the patch in doc/source/contributor/upstream on a copy of this Nova."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import fixtures
import nova
from nova.compute import monitors
from nova.tests.unit.compute.monitors import test_monitors

PATCH = (
    pathlib.Path(__file__).parents[2]
    / 'doc/source/contributor/upstream/monitors-of-other-packages.patch'
)


class UpstreamPatchTest(fixtures.TestWithFixtures):
    def patched(self, module):
        """Load a module of the patched copy."""
        spec = importlib.util.spec_from_file_location(
            module.__name__, self.tree / self.relative(module)
        )
        patched_module = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules):
            spec.loader.exec_module(patched_module)
        return patched_module

    def relative(self, module):
        return os.path.relpath(module.__file__, pathlib.Path(nova.__file__).parents[1])

    def test_novas_tests_of_its_monitors_pass_with_the_patch(self):
        self.tree = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for module in (monitors, test_monitors):
            copy = self.tree / self.relative(module)
            copy.parent.mkdir(parents=True)
            shutil.copy(module.__file__, copy)
        subprocess.run(['git', 'apply', PATCH], cwd=self.tree, check=True)
        tests = self.patched(test_monitors)
        tests.monitors = self.patched(monitors)
        suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
        self.assertEqual(2, suite.countTestCases())
        result = unittest.TestResult()
        suite.run(result)
        self.assertEqual([], result.errors + result.failures)
