# SPDX-License-Identifier: Apache-2.0
"""bash completes commands, actions, options and guests, and runs no command to do so."""

import importlib.util
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

from tests.fixtures.checkout import TOP


@unittest.skipUnless(importlib.util.find_spec('shtab'), 'needs shtab')
class CompletionTest(unittest.TestCase):
    scripts: pathlib.Path

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.scripts = pathlib.Path(directory.name)
        subprocess.run([sys.executable, TOP / 'tools/completion', directory.name], check=True)

    def completed(self, command, *words):
        """Return what bash, which finds no programs, offers for the last of these words."""
        script = shlex.quote(str(self.scripts / 'bash' / command))
        line = shlex.join([command, *words])
        text = (
            f'. {script}\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n'
            f'_shtab_{command.replace("-", "_")}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        bash = ['/bin/bash', '-c', text]
        environment = {**os.environ, 'PATH': '/nonexistent'}
        done = subprocess.run(bash, env=environment, stdout=subprocess.PIPE, text=True)
        return done.stdout.split()

    def test_commands_their_actions_and_options_are_completed(self):
        self.assertEqual(
            ['pause', 'pin', 'plan'], sorted(self.completed('nova-numa-rebalance', 'p'))
        )
        self.assertEqual(['install'], self.completed('nova-numa-rebalance', 'hook', 'i'))
        self.assertEqual(['--payback'], self.completed('nova-numa-rebalance', 'plan', '--pa'))
        self.assertEqual(['--check'], self.completed('nova-numa-agent', '--ch'))

    def test_the_values_of_an_option_are_completed(self):
        self.assertEqual(
            ['controller'], self.completed('nova-numa-rebalance', 'check', '--role', 'con')
        )
