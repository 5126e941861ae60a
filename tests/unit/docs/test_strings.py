# SPDX-License-Identifier: Apache-2.0
"""tools/strings prints what an operator can see, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from tests.fixtures.checkout import TOP

MODULE = """\
\"\"\"Internal text of a module.\"\"\"
import re
NAME = 'nova_numa_pmc'
PATTERN = re.compile('some words [a-z]+')
_COLUMNS = (('rem%', lambda guest: guest.remote), ('count', 3))


def f(guest):
    \"\"\"Return what is described only for programmers.\"\"\"
    headings = ('guest', 'day')
    raise ValueError(f'guest {guest} has gone')
"""


class StringsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = pathlib.Path(directory.name)

    def printed(self, path, text):
        """Return the (line, text) pairs that the tool prints of a file with this text."""
        path = self.top / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')
        done = subprocess.run(
            [sys.executable, TOP / 'tools/strings', path],
            check=True,
            capture_output=True,
            text=True,
        )
        return [tuple(line[len(f'{path}:') :].split(': ', 1)) for line in done.stdout.splitlines()]

    def test_of_a_module_messages_are_printed_but_not_docstrings_and_patterns(self):
        self.assertEqual([('11', 'guest {} has gone')], self.printed('agent/f.py', MODULE))

    def test_headings_of_tables_are_printed_also_of_one_word(self):
        printed = self.printed('cli/f.py', MODULE)
        self.assertEqual(
            ['count', 'rem%', 'day', 'guest', 'guest {} has gone'], [text for _, text in printed]
        )

    def test_the_docstring_of_a_command_is_its_help(self):
        for path, text in (
            ('commands/show.py', '"""Show the guests."""\n'),
            ('cmd/show.py', '"""Show the guests."""\nHELP = __doc__\n'),
        ):
            with self.subTest(path):
                self.assertEqual([('2', 'Show the guests.')], self.printed(path, text))

    def test_every_line_of_words_of_a_manual_page_is_printed(self):
        text = 'NAME\n----\n\nshow the guests of a host\n'
        self.assertEqual([('4', 'show the guests of a host')], self.printed('man.rst', text))
