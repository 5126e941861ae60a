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


def run_on_closed_pipe(*arguments, **variables):
    """Run the command with a pipe from which nothing is read; return the completed process."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, 'wb') as stdout:
        return run(*arguments, stdout=stdout, **variables)


class UsageTest(unittest.TestCase):
    def test_a_misspelt_word_is_answered_with_the_one_that_is_meant(self):
        for words, meant in (
            (('stauts',), 'status'),
            (('hook', 'instal'), 'install'),
            (('top', '--sort', 'acesses'), 'accesses'),
        ):
            with self.subTest(words):
                done = run(*words)
                self.assertEqual(64, done.returncode)
                self.assertIn('did you mean %s?' % meant, done.stderr.decode())
        self.assertNotIn('did you mean', run('xyzzy').stderr.decode())

    def test_an_option_cannot_be_abbreviated(self):
        self.assertEqual(64, run('check', '--js').returncode)


class OutputTest(unittest.TestCase):
    def test_a_closed_pipe_ends_a_command_with_1_and_without_a_word(self):
        for unbuffered in ('', '1'):
            with self.subTest(unbuffered=unbuffered):
                done = run_on_closed_pipe(
                    'check', '--events', '--cpu', 'skylake-sp', PYTHONUNBUFFERED=unbuffered
                )
                self.assertEqual((1, b''), (done.returncode, done.stderr))

    def test_a_full_disk_is_named(self):
        with open('/dev/full', 'w') as full:
            done = run('check', '--events', '--cpu', 'skylake-sp', stdout=full)
        self.assertEqual(1, done.returncode)
        self.assertRegex(done.stderr.decode(), '^nova-numa-rebalance: .*No space left[^\n]*\n$')

    def test_a_closed_output_is_not_a_failure(self):
        done = subprocess.run(
            [
                '/bin/sh',
                '-c',
                'exec "$@" >&-',
                '-',
                *COMMAND,
                'check',
                '--events',
                '--cpu',
                'skylake-sp',
            ],
            cwd=TOP,
            stderr=subprocess.PIPE,
            check=False,
        )
        self.assertEqual((0, b''), (done.returncode, done.stderr))
