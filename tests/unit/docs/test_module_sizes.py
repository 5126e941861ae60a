# SPDX-License-Identifier: Apache-2.0
"""No module of the package is longer than 400 lines without a reason."""

import unittest

from tests.unit.docs.glossary import PACKAGE

LINES_MAX = 400
HOOK = 'the hook imports it at each start, and every module of its own costs 0.1 ms there'
#: The modules that are longer, with the reasons.
LONGER = {
    'conf/host_options.py': 'one option after the other, with its help',
    'core/host_view.py': HOOK,
    'host/holding.py': HOOK,
    'host/guests.py': HOOK,
    'model.py': HOOK,
    'promises.py': HOOK,
}


class ModuleSizesTest(unittest.TestCase):
    def test_a_long_module_has_a_reason(self):
        longer = {
            str(path.relative_to(PACKAGE))
            for path in PACKAGE.rglob('*.py')
            if len(path.read_text(encoding='utf-8').splitlines()) > LINES_MAX
        }
        self.assertEqual(set(LONGER), longer)
