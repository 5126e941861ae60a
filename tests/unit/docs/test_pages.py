# SPDX-License-Identifier: Apache-2.0
"""Pages name modules that exist and commands that are accepted."""

import re
import shlex
import unittest

from nova_numa_pmc.cmd import agent, rebalance
from tests.fixtures.checkout import TOP

PAGES = [TOP / 'README.rst', *sorted((TOP / 'doc/source').rglob('*.rst'))]
PARSERS = {'nova-numa-rebalance': rebalance.build_parser, 'nova-numa-agent': agent.build_parser}
#: A line of an indented block with one of our commands, perhaps after sudo or with its directory.
COMMAND = re.compile(
    r'^ {4,}(?:[#$] )?(?:sudo )?(?:/\S+/)?(nova-numa-(?:rebalance|agent) [a-z-].*)$', re.M
)
#: What ends a command in a line of shell.
ENDS = {'|', '&&', '||', ';', '>', '>/dev/null'}


def commands(text):
    """Return the words of our commands in a page's blocks."""
    found = []
    for line in COMMAND.findall(text.replace('\\\n', ' ')):
        words = shlex.split(line, comments=True)
        end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
        found.append(words[:end])
    return found


class CommandsTest(unittest.TestCase):
    def test_each_command_in_a_block_of_a_page_is_accepted(self):
        for page in PAGES:
            for name, *words in commands(page.read_text(encoding='utf-8')):
                with self.subTest(page=page.name, command=words):
                    self.assertIsNotNone(PARSERS[name]().parse_args(words))

    def test_each_symptom_of_an_incident_has_three_commands(self):
        text = (TOP / 'doc/source/admin/incident.rst').read_text(encoding='utf-8')
        parts = re.split(r'\n[^\n]+\n=+\n\n', text)[2:]
        counts = [len(re.findall(r'^    \S', part, re.M)) for part in parts]
        self.assertEqual([3] * 10, counts)


class ArchitectureTest(unittest.TestCase):
    def test_each_room_and_module_that_the_architecture_names_exists(self):
        text = (TOP / 'doc/source/contributor/architecture.rst').read_text(encoding='utf-8')
        package = TOP / 'nova_numa_pmc'
        named = re.findall(r'``([\w/]+/|[\w/]*\w\.py)``', text)
        self.assertGreater(len(named), 30)
        for name in named:
            with self.subTest(name):
                self.assertTrue(
                    (package / name).exists()
                    or (TOP / name).exists()
                    or list(package.rglob('*/' + name))
                )

    def test_each_room_of_the_package_is_described(self):
        text = (TOP / 'doc/source/contributor/architecture.rst').read_text(encoding='utf-8')
        for path in (TOP / 'nova_numa_pmc').glob('*/__init__.py'):
            with self.subTest(path.parent.name):
                self.assertIn('``%s/``' % path.parent.name, text)
