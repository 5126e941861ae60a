# SPDX-License-Identifier: Apache-2.0
"""A bad value of an option of the hook gives the default and a problem, and never an error."""

import os
import shutil
import subprocess
import tempfile
import unittest

from hypothesis import given, settings as hypothesis_settings, strategies as st

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.host import hook_files
from tests.fixtures.checkout import TOP


class DefaultsTest(unittest.TestCase):
    def test_an_empty_file_gives_the_defaults(self):
        values, problems = host_options.parse('')
        self.assertEqual([], problems)
        self.assertEqual({(o.group, o.name): o.default for o in host_options.OPTIONS}, values)

    def test_a_parser_is_imported_only_for_a_file_that_sets_something(self):
        code = (
            'import sys; from nova_numa_pmc.conf import host_options as options; '
            'options.parse(sys.argv[1]); print("configparser" in sys.modules)'
        )
        sample = (TOP / 'etc/nova-numa-pmc/nova-numa-pmc.conf.sample').read_text()
        for text, expected in (('', 'False'), (sample, 'False'), ('[hook]\nbind = on', 'True')):
            with self.subTest(expected):
                command = [hook_files.INTERPRETER, '-S', '-c', code, text]
                out = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, text=True)
                self.assertEqual(expected, out.stdout.strip())


class SyntaxTest(unittest.TestCase):
    def values(self, text):
        values, problems = host_options.parse(text)
        self.assertEqual([], problems)
        return values

    def test_unknown_groups_and_options_are_ignored(self):
        values = self.values('debug = true\n[other]\nbind = nonsense\n[hook]\nfuture = 1')
        self.assertIs(False, values['hook', 'bind'])

    def test_an_option_in_the_wrong_group_is_ignored(self):
        self.assertIs(False, self.values('[placement]\nbind = true')['hook', 'bind'])


class BadValueTest(unittest.TestCase):
    def test_each_bad_value_gives_the_default_and_one_problem(self):
        for group, line in [
            ('hook', 'enabled = maybe'),
            ('hook', 'enabled ='),
            ('hook', 'timeout_s = 0'),
            ('hook', 'timeout_s = nan'),
            ('hook', 'timeout_s = inf'),
            ('hook', 'timeout_s = two'),
            ('hook', 'timeout_s = 3\n  1'),
            ('placement', 'reserve_mib = -1'),
            ('placement', 'reserve_mib = 1.5'),
            ('placement', 'ram_allocation_ratio = 65'),
            ('placement', 'guest_memory_nodes = 2-1'),
            ('placement', 'guest_memory_nodes = GPU'),
            ('state', 'dir = run'),
            ('state', 'dir ='),
            ('state', 'dir = /run/a\0b'),
            ('state', 'dir = /run\n  /more'),
        ]:
            with self.subTest(line=line):
                values, problems = host_options.parse(f'[{group}]\n{line}\n', 'here.conf')
                name = line.split(' ')[0]
                default = {o.name: o.default for o in host_options.OPTIONS}[name]
                self.assertEqual(default, values[group, name])
                self.assertEqual(1, len(problems), problems)
                self.assertIn('here.conf', problems[0])
                self.assertIn(name, problems[0])
                self.assertNotIn('\n', problems[0])

    def test_a_bad_line_is_named_and_the_rest_still_counts(self):
        for line in ('no assignment here', '= value', '[hook', '[]', '  continues nothing'):
            with self.subTest(line=line):
                values, problems = host_options.parse(
                    f'{line}\n[hook]\nbind = true\n', 'here.conf'
                )
                self.assertIs(True, values['hook', 'bind'])
                self.assertEqual(1, len(problems), problems)
                self.assertIn(repr(line) if line[0] == '[' else 'line 1', problems[0])

    def test_what_follows_a_bad_header_is_of_no_group(self):
        for header in ('[counters', '[', '[]', '[other] x'):
            text = f'[hook]\nbind = true\n{header}\nenabled = false\nbind = false\n'
            values, problems = host_options.parse(text)
            self.assertEqual((True, True), (values['hook', 'enabled'], values['hook', 'bind']))
            self.assertEqual(1, len(problems), problems)

    @hypothesis_settings(max_examples=200)
    @given(st.text(st.sampled_from('[]hook=:# \t\n\r"\'bind strue0.5-\0é'), max_size=80))
    def test_parsing_any_text_gives_every_option_and_never_raises(self, text):
        values, _ = host_options.parse('[hook]\n' + text)
        self.assertEqual({(o.group, o.name) for o in host_options.OPTIONS}, set(values))
        for option in host_options.OPTIONS:
            self.assertIs(option.kind, type(values[option.group, option.name]))


class ReadTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'some.conf')

    def write(self, data):
        with open(self.path, 'wb') as file:
            file.write(data)

    def test_a_missing_file_is_not_a_problem(self):
        self.assertEqual((), host_options.read(self.path).problems)

    def test_an_unusable_file_gives_the_defaults_and_says_so(self):
        for name, data in (
            ('not UTF-8', b'[hook]\nbind = true\n\xff'),
            ('too long', b'#' * (host_options.SIZE_MAX_BYTES + 1)),
        ):
            with self.subTest(name):
                self.write(data)
                options = host_options.read(self.path)
                self.assertIs(False, options.bind)
                self.assertEqual(1, len(options.problems))
                self.assertIn(self.path, options.problems[0])

    def test_options_of_a_host_below_a_root_are_read_there(self):
        root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, root)
        path = host_options.path_under_root(root, host_options.PATH)
        self.assertEqual(root + host_options.PATH, path)
        os.makedirs(os.path.dirname(path))
        with open(path, 'w') as file:
            file.write('[state]\ndir = /run/x\n')
        self.assertEqual('/run/x', host_options.read_under_root(root).state_dir)
        self.assertEqual('/run/x', host_options.read_under_root(root).state_path('/'))
