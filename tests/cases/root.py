# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of what reads or writes files below a root directory."""

import tempfile
import unittest

from tests.fixtures import sysfs


class RootCase(unittest.TestCase):
    """An empty directory that stands for the root of a host's file system."""

    def setUp(self):
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name

    def write(self, path, text):
        """Write a file below the root, with its directories."""
        sysfs.write(self.root, path, text)
