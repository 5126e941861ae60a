# SPDX-License-Identifier: Apache-2.0
"""The hook's parser and oslo.config agree on the options, their defaults and the sample.

The options of the agent and of counters are read, and a wrong value is refused with its name.
"""

import os
import re
import tempfile
import unittest
from unittest import mock

from hypothesis import given, settings, strategies as st
from oslo_config import cfg, validator

from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import OptionsError
from tests.fixtures import option_file
from tests.fixtures.checkout import SAMPLE

FILE = """\
# as an operator writes it
[placement]
ram_allocation_ratio = 1.5
reserve_mib: 1024
guest_memory_nodes = "2,4-5"

[hook]
enabled = FALSE
timeout_s = 4
bind = Yes
strict= off
strict =on
a_later_release_knows_this = 1

[State]
dir = '/run/elsewhere'
"""
AGENT = """\
[agent]
rebalance = dry-run
moved_percent_per_day = 3
move_mib_per_s = 50
widen = no
[counters]
interval_s = 7
[hook]
bind = maybe
[placement]
reserve_mib = 1024
[state]
dir = /run/elsewhere
"""
COUNTERS = """\
[counters]
enabled = no
interval_s = 2.5
sources = resctrl, pages
event = remote_dram=cpu/event=0xd3,umask=0x2/
event = local_dram = r53080f
node_bandwidth_max = 0:76000,1:38.5
"""


def values_of(path):
    """Read the file with oslo.config: {(group, name): value}."""
    conf = cfg.ConfigOpts()
    for group, group_options in opts.list_opts():
        conf.register_group(group)
        conf.register_opts(group_options, group=group)
    conf(
        ['--config-file', path] if path else [],
        project='nova-numa-pmc',
        default_config_files=[],
        default_config_dirs=[],
    )
    return {(o.group, o.name): conf[o.group][o.name] for o in host_options.OPTIONS}


class AgreementTest(unittest.TestCase):
    """The hook's parser and oslo.config read the same file identically."""

    def assert_alike(self, text):
        with tempfile.NamedTemporaryFile('w', suffix='.conf') as file:
            file.write(text)
            file.flush()
            ours, problems = host_options.parse(text)
            self.assertEqual([], problems)
            self.assertEqual(values_of(file.name), ours)
        return ours

    def test_both_parsers_have_the_same_options_and_defaults(self):
        listed = [
            (group.name, opt.name, opt.default)
            for group, group_options in opts.list_opts()
            for opt in group_options
            if group.name in dict(host_options.GROUPS)
        ]
        self.assertEqual([(o.group, o.name, o.default) for o in host_options.OPTIONS], listed)
        self.assert_alike('')

    def test_both_parsers_read_a_file_with_all_options_set_alike(self):
        ours = self.assert_alike(FILE)
        for option in host_options.OPTIONS:
            with self.subTest(option=option.name):
                self.assertNotEqual(option.default, ours[option.group, option.name])

    def test_both_parsers_read_the_shipped_sample_alike(self):
        with open(SAMPLE, encoding='utf-8') as file:
            sample = file.read()
        self.assert_alike(sample)
        self.assert_alike(re.sub(r'(?m)^#(\w+ = )', r'\1', sample))

    def test_both_parsers_refuse_values_out_of_bounds(self):
        for option in host_options.OPTIONS:
            if option.minimum is None:
                continue
            for value in (option.minimum - 1, option.maximum + 1):
                text = f'[{option.group}]\n{option.name} = {value}\n'
                with self.subTest(text=text), tempfile.NamedTemporaryFile('w') as file:
                    file.write(text)
                    file.flush()
                    with self.assertRaises(cfg.ConfigFileValueError):
                        values_of(file.name)
                    self.assertEqual(1, len(host_options.parse(text)[1]))


class AgentTest(unittest.TestCase):
    def read(self, text):
        return option_file.read(opts.read, text)

    def test_each_option_of_the_agent_is_read(self):
        options = self.read(AGENT)
        self.assertEqual(
            (
                'dry-run',
                plan_records.RebalanceOptions(
                    moved_ratio_per_day=0.03,
                    bytes_per_sec=50 << 20,
                    reserve_bytes=1 << 30,
                    widen=False,
                ),
            ),
            options[2:],
        )
        self.assertEqual(
            (7.0, '/run/elsewhere'),
            (options.counter_options.interval_s, options.host_options.state_dir),
        )
        self.assertEqual(1, len(options.host_options.problems))
        self.assertIn('bind', options.host_options.problems[0])

    def test_a_wrong_value_is_refused_with_its_option(self):
        for line in ('rebalance = maybe', 'moved_percent_per_day = -1', 'move_mib_per_s = x'):
            with self.subTest(line), self.assertRaisesRegex(OptionsError, line.split(' ')[0]):
                self.read('[agent]\n%s\n' % line)


class CountersTest(unittest.TestCase):
    def read(self, text):
        return option_file.read(opts.read_counters, text)

    def test_each_option_of_the_counters_is_read_beside_a_wrong_one_of_the_agent(self):
        options = self.read(COUNTERS + '[agent]\nrebalance = maybe\n')
        self.assertEqual(
            (
                False,
                2.5,
                ('resctrl', 'pages'),
                (('remote_dram', 'cpu/event=0xd3,umask=0x2/'), ('local_dram', 'r53080f')),
                ((0, 76e9), (1, 38.5e6)),
            ),
            options[:5],
        )

    def test_a_wrong_value_is_refused_with_its_option(self):
        for line in (
            'sources = perf',
            'interval_s = 0',
            'event = remote=r1',
            'event = r1',
            'event = remote_dram=',
            'node_bandwidth_max = a:1',
            'node_bandwidth_max = 0:-1',
            'node_bandwidth_max = 0:nan',
            'node_bandwidth_max = 0:x',
        ):
            with self.subTest(line=line), self.assertRaisesRegex(OptionsError, line.split(' ')[0]):
                self.read('[counters]\n%s\n' % line)
        for text in ('no group\n', '[counters\n', '\x00'):
            with self.subTest(text=text), self.assertRaises(OptionsError):
                self.read(text)
        with self.assertRaises(OptionsError), tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o700)
            opts.read_counters(directory)


class UnknownTest(unittest.TestCase):
    """What is no option is what oslo.config's own validator finds to be none."""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(('agent', 'agnet', 'hook', 'counters', 'placement')),
                st.sampled_from(('rebalance', 'rebalanse', 'bind', 'event', 'interval_s')),
            ),
            max_size=4,
        )
    )
    @settings(max_examples=20, deadline=None)
    def test_unknown_options_are_those_of_the_validator(self, pairs):
        with tempfile.NamedTemporaryFile('w', suffix='.conf') as file:
            file.writelines('[%s]\n%s = 1\n' % pair for pair in pairs)
            file.flush()
            known = {(g.name, o.dest) for g, group in opts.list_opts() for o in group}
            found = [text.split(', ')[0] for text in opts.find_unknown(file.name, known)]
            conf = cfg.ConfigOpts()
            conf.register_cli_opts(validator._validator_opts)
            conf(['--namespace', 'nova_numa_pmc', '--input-file', file.name])
            with mock.patch.object(validator, 'LOG') as log:
                validator._validate(conf)
        expected = {'there is no option [%s] %s' % call.args[1:] for call in log.error.mock_calls}
        self.assertEqual(expected, set(found))


class SampleTest(unittest.TestCase):
    def test_the_sample_shows_every_option_with_its_default(self):
        """An outdated sample is misleading; `make config` writes it anew."""
        with open(SAMPLE, encoding='utf-8') as file:
            lines = file.read().splitlines()
        for option in host_options.OPTIONS:
            default = str(option.default).lower() if option.kind is bool else option.default
            self.assertIn(f'#{option.name} = {default}'.rstrip(), lines)
        listed = {opt.name for _, group in opts.list_opts() for opt in group}
        self.assertEqual(
            listed, {line[1:].split(' ')[0] for line in lines if re.match(r'#\w+ =', line)}
        )
