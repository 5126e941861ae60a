# SPDX-License-Identifier: Apache-2.0
"""Options that do not exist are found in our file, and in our group of Nova's files."""

import os

from nova_numa_pmc.checks import options
from tests.cases.root import RootCase


class UnknownOptionTest(RootCase):
    def file(self, text):
        self.write('some.conf', text)
        return os.path.join(self.root, 'some.conf')

    def test_an_option_that_does_not_exist_is_found_with_its_file(self):
        path = self.file('[hook]\nbind = true\nbinds = true\n[DEFAULT]\nx = 1\n')
        (found,) = options.check_own(path)
        self.assertEqual(('option-unknown', path), (found.code, found.file))
        self.assertIn('[hook] binds', found.message)

    def test_only_our_group_of_novas_files_counts(self):
        text = '[numa_pmc]\nmode = on\ncpu_metrics = true\nweight_step = 1\n[libvirt]\ny = 2\n'
        (found,) = options.check_novas([self.file(text)])
        self.assertIn('[numa_pmc] weight_step', found.message)

    def test_a_file_that_is_absent_or_no_configuration_is_left_to_other_checks(self):
        for path in ('/nonexistent', self.file('no group\n')):
            self.assertEqual([], list(options.check_own(path)))
