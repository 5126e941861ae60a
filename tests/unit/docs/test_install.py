# SPDX-License-Identifier: Apache-2.0
"""The installation guide lists every extra, and no others."""

import configparser
import re
import sys
import unittest
from unittest import mock

from nova_numa_pmc.core import finding
from tests.fixtures.checkout import TOP

PAGE = TOP / 'doc/source/install/index.rst'


class ExtrasTest(unittest.TestCase):
    def test_the_table_of_the_install_page_has_each_extra(self):
        config = configparser.ConfigParser()
        config.read(TOP / 'setup.cfg', encoding='utf-8')
        table = re.split(r'(?m)^=+ =+$', PAGE.read_text(encoding='utf-8'))[1]
        self.assertEqual(sorted(config['extras']), sorted(re.findall(r'(?m)^``(\w+)``', table)))


class ReleasesTest(unittest.TestCase):
    def test_the_guides_name_the_releases_of_nova_that_are_tested(self):
        tested = {
            path.stem.removeprefix('requirements-')
            for path in (TOP / 'tests/nova').glob('requirements-[0-9]*.txt')
        }
        for page in ('README.rst', 'doc/source/install/index.rst', 'doc/source/admin/nova.rst'):
            text = (TOP / page).read_text(encoding='utf-8')
            sentences = [part for part in re.split(r'\.\s|\.$', text) if 'tested' in part]
            named = [set(re.findall(r'\b[23]\d\b', part)) for part in sentences]
            self.assertTrue(any(tested <= releases for releases in named), page)


class NameTest(unittest.TestCase):
    def test_nothing_is_installed_by_the_name_of_this_project_from_the_public_index(self):
        # Nobody has registered it there, so whoever does would run code as root.
        by_name = re.compile(
            r'pip3?\s+install[^\n]*(?<![\w./-])nova-numa-pmc(?![\w/.])|nova-numa-pmc\[(?!%)'
        )
        found = [
            '%s: %s' % (path.relative_to(TOP), match[0])
            for part in ('nova_numa_pmc', 'doc/source', 'etc', 'hooks', 'devstack', 'README.rst')
            for path in [TOP / part, *(TOP / part).rglob('*')]
            if path.suffix in ('.py', '.rst', '.sh', '.sample', '.service', '') and path.is_file()
            for match in by_name.finditer(path.read_text(encoding='utf-8', errors='replace'))
        ]
        self.assertEqual([], found)

    def test_a_remedy_installs_the_distributions_package_into_the_environment_that_runs(self):
        for prefix, base_prefix, ending in (
            ('/opt/nova-numa-pmc', '/usr', '--system-site-packages /opt/nova-numa-pmc'),
            ('/usr', '/usr', 'install python3-rich from the distribution'),
        ):
            with mock.patch.multiple(sys, prefix=prefix, base_prefix=base_prefix):
                self.assertTrue(finding.install_remedy('python3-rich').endswith(ending))
