# SPDX-License-Identifier: Apache-2.0
"""The devstack plugin does what the operator's guide says."""

import re
import unittest

from tests.stack import guide
from tests.stack.layout import CHECKOUT

PLUGIN = (CHECKOUT / 'devstack/plugin.sh').read_text()
#: What devstack does in its own way: (the guide's command, the plugin's).
OWN_WORDS = {
    '/usr/bin/python3 -m pip install --no-deps .': 'pip_install --no-deps "$NUMA_PMC_DIR"',
    'nova-numa-rebalance hook install --reload': 'sudo '
    '/usr/local/sbin/nova-numa-rebalance hook install --reload',
}
#: Commands for an operator to look or try, which no script runs.
SAMPLES = (
    'nova-numa-agent --check',
    'journalctl',
    'head -1',
    'nova-numa-rebalance check',
    'nova-numa-rebalance hook status',
)


def _plain(line):
    """Return a line without quotes and sudo, with the names of places used in the guide."""
    line = (
        line.replace('\\\n', ' ')
        .replace('"', '')
        .replace("'", '')
        .replace('$NUMA_PMC_VENV', '/opt/nova-numa-pmc')
    )
    return (
        re.sub(r'\s+', ' ', re.sub(r'\bsudo ', '', line))
        .replace('${NUMA_PMC_DIR}', '.')
        .replace('$NUMA_PMC_DIR', '.')
        .strip()
    )


class PluginTest(unittest.TestCase):
    def test_the_plugin_has_every_step_of_a_compute_host(self):
        done = {_plain(line) for line in PLUGIN.replace('\\\n', ' ').splitlines()}
        steps = [
            step
            for path, heading in [
                (guide.INSTALL, 'On a compute host'),
                (guide.AGENT, 'Install it'),
                (guide.NOVA, 'On compute hosts'),
            ]
            for step in guide.commands(path, heading)
            if not step.startswith(SAMPLES)
        ]
        self.assertGreater(len(steps), 5)
        for step in steps:
            with self.subTest(step):
                self.assertIn(_plain(OWN_WORDS.get(step, step)), done)

    def test_options_of_the_plugin_are_the_guides(self):
        words = PLUGIN.replace('$NUMA_PMC_CLASSES', 'nova_numa_pmc.scheduler')
        for ini in (guide.controller_ini(), guide.compute_ini()):
            for key, value in re.findall(r'^(\w+) = (.*)$', ini, re.M):
                if key in ('enabled_filters', 'weight_multiplier'):  # built from existing values
                    continue
                with self.subTest(key):
                    self.assertIn(key, words)
                    self.assertIn(value, words)

    def test_options_are_written_to_the_file_that_devstack_copies_for_nova_compute(self):
        files = set(re.findall(r'iniset "([^"]*)"', PLUGIN))
        self.assertEqual({'$NOVA_CONF'}, files)

    def test_our_filter_comes_before_novas(self):
        (listed,) = re.findall(r'^enabled_filters = (.*)$', guide.controller_ini(), re.M)
        self.assertTrue(listed.endswith('NUMAPressureFilter,NUMATopologyFilter'))
        self.assertIn('NUMAPressureFilter,NUMATopologyFilter\n', PLUGIN)
