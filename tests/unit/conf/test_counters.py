# SPDX-License-Identifier: Apache-2.0
"""The options of counters are read, and a wrong value is refused with the option's name."""

import os
import tempfile
import unittest

from nova_numa_pmc.conf import counters as counters_conf
from nova_numa_pmc.exceptions import OptionsError
from tests.fixtures import option_file

FILE = """\
[counters]
enabled = no
interval_s = 2.5
sources = resctrl, pages
event = remote_dram=cpu/event=0xd3,umask=0x2/
event = local_dram = r53080f
node_bandwidth_max = 0:76000,1:38.5
"""


class ReadTest(unittest.TestCase):
    def read(self, text):
        return option_file.read(counters_conf.read, text)

    def test_each_option_of_the_counters_is_read(self):
        options = self.read(FILE)
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
            counters_conf.read(directory)
