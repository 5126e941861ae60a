# SPDX-License-Identifier: Apache-2.0
"""bash completes commands, actions and options of nova-numa-rebalance from its help."""

import os
import shlex
import subprocess
import sys
import tempfile
import unittest

from tests.fixtures.checkout import TOP

SCRIPT = TOP / 'etc/bash-completion/nova-numa-rebalance'


class CompletionTest(unittest.TestCase):
    def completed(self, *words):
        """Return what bash offers for the last of these words after the command."""
        with tempfile.TemporaryDirectory() as directory:
            command = os.path.join(directory, 'nova-numa-rebalance')
            with open(command, 'w', encoding='utf-8') as file:
                python = shlex.quote(sys.executable)
                file.write(f'#!/bin/sh\nexec {python} -m nova_numa_pmc.cmd.rebalance "$@"\n')
            os.chmod(command, 0o755)
            line = shlex.join(['nova-numa-rebalance', *words])
            done = subprocess.run(
                [
                    'bash',
                    '-c',
                    f'. {shlex.quote(str(SCRIPT))}\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n'
                    '_nova_numa_rebalance\nprintf "%s\\n" "${COMPREPLY[@]}"',
                ],
                cwd=TOP,
                env={**os.environ, 'PATH': f'{directory}:{os.environ["PATH"]}'},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        return done.stdout.split()

    def test_commands_and_their_actions_are_completed(self):
        self.assertEqual(['pause', 'pin', 'plan'], self.completed('p'))
        self.assertEqual(['install'], self.completed('hook', 'i'))

    def test_options_are_completed_with_a_command_and_without(self):
        self.assertEqual(['--payback'], self.completed('plan', '--pa'))
        self.assertEqual(['--interval'], self.completed('--in'))
        self.assertEqual(['--html'], self.completed('--interval', '5', '--ht'))
