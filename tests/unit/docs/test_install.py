# SPDX-License-Identifier: Apache-2.0
"""The installation guide lists every extra, and no others."""

import configparser
import re
import unittest

from tests.fixtures.checkout import TOP

PAGE = TOP / 'doc/source/install/index.rst'


class ExtrasTest(unittest.TestCase):
    def test_the_table_of_the_install_page_has_each_extra(self):
        config = configparser.ConfigParser()
        config.read(TOP / 'setup.cfg', encoding='utf-8')
        table = re.split(r'(?m)^=+ =+$', PAGE.read_text(encoding='utf-8'))[1]
        self.assertEqual(sorted(config['extras']), sorted(re.findall(r'(?m)^``(\w+)``', table)))
