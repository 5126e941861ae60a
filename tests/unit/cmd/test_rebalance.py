# SPDX-License-Identifier: Apache-2.0
"""The command as a process: its output goes to a pipe or a terminal."""

import os
import subprocess
import sys
import unittest

from tests.fixtures.checkout import TOP

COMMAND = sys.executable, '-m', 'nova_numa_pmc.cmd.rebalance'


def run(*arguments, stdout=subprocess.PIPE, **variables):
    """Run the command with variables in its environment; return the completed process."""
    return subprocess.run(
        (*COMMAND, *arguments),
        cwd=TOP,
        env={**os.environ, 'PYTHONUNBUFFERED': '', **variables},
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )


class OutputTest(unittest.TestCase):
    def test_a_closed_pipe_ends_it_with_1_and_without_a_word(self):
        for unbuffered in ('', '1'):
            for arguments in (('events', '--cpu', 'skylake-sp'), ('--help',)):
                reader, writer = os.pipe()
                os.close(reader)
                try:
                    done = run(*arguments, stdout=writer, PYTHONUNBUFFERED=unbuffered)
                finally:
                    os.close(writer)
                with self.subTest(arguments, unbuffered=unbuffered):
                    self.assertEqual(b'', done.stderr)
                    # From Python 3.12 on, argparse does not tell that help could not be printed.
                    if arguments != ('--help',):
                        self.assertEqual(1, done.returncode)

    def test_a_full_disk_is_named(self):
        with open('/dev/full', 'w') as full:
            done = run('events', '--cpu', 'skylake-sp', stdout=full)
        self.assertEqual(1, done.returncode)
        self.assertRegex(done.stderr.decode(), '^nova-numa-rebalance: .*No space left[^\n]*\n$')

    def test_a_closed_output_is_not_a_failure(self):
        done = subprocess.run(
            ['/bin/sh', '-c', 'exec "$@" >&-', '-', *COMMAND, 'events', '--cpu', 'skylake-sp'],
            cwd=TOP,
            stderr=subprocess.PIPE,
            check=False,
        )
        self.assertEqual((0, b''), (done.returncode, done.stderr))

    def test_what_the_locale_cannot_encode_is_replaced(self):
        done = run('report', '--help', PYTHONIOENCODING='latin-1')
        self.assertEqual((0, b''), (done.returncode, done.stderr))
