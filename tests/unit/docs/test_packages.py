# SPDX-License-Identifier: Apache-2.0
"""The diagram of the packages matches their imports."""

import subprocess
import sys
import textwrap
import unittest

from tests.unit.docs.glossary import TOP

PAGE = TOP / 'doc/source/contributor/architecture.rst'


def packages(*inside):
    """Return the lines of tools/packages."""
    return subprocess.run(
        [sys.executable, 'tools/packages', *inside],
        cwd=TOP,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


class PackagesTest(unittest.TestCase):
    def test_the_page_has_the_output_of_the_packages_tool(self):
        listed = textwrap.indent(packages(), '    ')
        self.assertIn(
            listed, PAGE.read_text(encoding='utf-8'), 'paste the output of tools/packages'
        )

    def test_the_packages_tool_lists_the_inside_of_a_package(self):
        self.assertIn('placement', [line.split()[0] for line in packages('core').splitlines()])

    def test_each_folder_says_in_one_sentence_what_lives_in_it(self):
        for path in sorted((TOP / 'nova_numa_pmc').glob('**/__init__.py')):
            with self.subTest(str(path.relative_to(TOP))):
                self.assertRegex(path.read_text(encoding='utf-8'), r'(?m)^""".+\.(""")?$')
