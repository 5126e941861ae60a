# SPDX-License-Identifier: Apache-2.0
"""tools/commit-message accepts what CONTRIBUTING requires of a message, and names its faults."""

import os
import subprocess
import sys
import tempfile
import unittest

from tests.fixtures.checkout import TOP

BODY = '\n\nWhy.\n'


def check(text):
    """Return (exit code, faults) of a message as left by an editor."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, 'message')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        done = subprocess.run(
            [sys.executable, TOP / 'tools/commit-message', path],
            check=False,
            capture_output=True,
            text=True,
        )
    return done.returncode, [line.partition(': ')[2] for line in done.stdout.splitlines()]


class CommitMessageTest(unittest.TestCase):
    def test_a_commit_message_of_subject_and_body_passes(self):
        for text in (
            'Bring remote memory home\n\nThere no guest counts accesses.\n',
            'Shred the old samples' + BODY,
            'String the names together' + BODY,
            'Ping the agent' + BODY,
            'Ring once for each warning' + BODY,
            'Spring over hosts without metrics' + BODY,
            'Rename bind to memory_fits\n',
            'Count each guest once\n\nThe sum was above the memory of the host. Both ended.\n',
            'Seed the trace\n# a comment: ignored.\n\nRuns differed.\n',
            'Count\n\nWhy.\n# ------------------------ >8 ------------------------\ndiff --git\n',
            'A' * 72 + '\n\nWhy.',
            'Count\n\n' + 'a word ' * 10 + 'of\n\nhttps://example.org/' + 'a' * 72,
            'fixup! Count guests\n',
        ):
            with self.subTest(text=text):
                self.assertEqual((0, []), check(text))

    def test_each_fault_of_a_commit_message_is_named(self):
        for text, fault in (
            ('', 'the subject is empty'),
            ('# only a comment\n', 'the subject is empty'),
            ('A' * 73 + BODY, 'the subject has 73 characters, above 72'),
            ('count guests' + BODY, 'the subject does not begin with a capital letter'),
            ('Added a column' + BODY, '"Added" is not an imperative'),
            ('Adding a column' + BODY, '"Adding" is not an imperative'),
            ('Add a column.' + BODY, 'the subject ends with a full stop'),
            ('Add a column\nof guests', 'the second line is not blank'),
            (
                'Count\n\nWhy.\n' + 'a word ' * 10 + 'one',
                'a line of the body has 73 characters, above 72',
            ),
        ):
            with self.subTest(text=text):
                self.assertEqual((1, [fault]), check(text))

    def test_a_commit_message_without_body_is_named_unless_it_moves_or_renames(self):
        for text in ('Count each guest once\n', 'Count each guest once\n\n# Why?\n'):
            with self.subTest(text=text):
                self.assertEqual((1, ['there is no body: say why']), check(text))
