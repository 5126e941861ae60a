# SPDX-License-Identifier: Apache-2.0
"""Test which steps the stack reads from the operator's guide."""

import unittest

from tests.stack import config, guide

TEXT = """\
=====
Title
=====

First
=====

Do this::

    one command
    two   # with a comment

and ``nova.conf``:

.. code-block:: ini

    [a]
    b = 1

    [c]
    d = 2

Then more.

Second
======

Nothing.
"""


class SectionTest(unittest.TestCase):
    def test_a_section_ends_at_the_next_heading(self):
        text = guide.section(TEXT, 'First')
        self.assertIn('one command', text)
        self.assertNotIn('Nothing', text)
        self.assertEqual('Nothing.', guide.section(TEXT, 'Second').strip())

    def test_an_unknown_heading_is_named(self):
        with self.assertRaisesRegex(guide.GuideError, 'Third'):
            guide.section(TEXT, 'Third')


class BlocksTest(unittest.TestCase):
    def test_a_block_is_dedented_and_whole(self):
        self.assertEqual(
            ['[a]\nb = 1\n\n[c]\nd = 2'], guide.blocks(TEXT, r'^\.\. code-block:: ini$')
        )

    def test_a_marker_without_a_block_gives_none(self):
        self.assertEqual([], guide.blocks('nothing::\n\ntext\n', '::$'))


class OperatorsGuideTest(unittest.TestCase):
    def test_a_controller_gets_weigher_and_filter(self):
        text = guide.controller_ini()
        self.assertIn('NUMAPressureWeigher', text)
        self.assertIn('NUMAPressureFilter', text)

    def test_a_compute_host_gets_the_monitor(self):
        self.assertIn('compute_monitors = cpu.numa_pmc', guide.compute_ini())

    def test_a_compute_host_gets_the_guides_commands(self):
        commands = guide.commands(guide.INSTALL, 'On a compute host')
        self.assertIn('/usr/bin/python3 -m venv /opt/nova-numa-pmc', commands)
        self.assertIn('nova-numa-rebalance hook install --reload', commands)
        # pip, which runs after that, would replace a link in /usr/local/bin.
        link = 'ln -sf /opt/nova-numa-pmc/bin/nova-numa-agent /usr/local/sbin/'
        self.assertIn(link, commands)
        self.assertIn(link, guide.commands(guide.AGENT, 'Install it'))
        self.assertIn(
            'systemctl enable --now nova-numa-agent', guide.commands(guide.AGENT, 'Install it')
        )
        self.assertIn(
            'cp -r /opt/nova-numa-pmc/share/nova-numa-pmc/systemd/'
            'nova-numa-agent.service* /etc/systemd/system/',
            guide.commands(guide.AGENT, 'Install it'),
        )
        lines = guide.commands(guide.NOVA, 'On compute hosts')
        self.assertIn('/usr/bin/python3 -m pip install --no-deps .', lines)
        self.assertFalse([line for line in lines if line.startswith(('[', '#', 'compute_'))])


class IniTest(unittest.TestCase):
    def test_an_option_may_be_repeated(self):
        self.assertEqual(
            '[a]\nb = 1\nc = x\nc = y\n', config.ini({'a': {'b': 1, 'c': ['x', 'y']}})
        )
