# SPDX-License-Identifier: Apache-2.0
import os
import re
import unittest

from oslo_config import cfg

from nova_numa_pmc.conf import scheduler as scheduler_conf

SAMPLE = os.path.join(
    os.path.dirname(__file__),
    '..',
    '..',
    '..',
    'etc',
    'nova-numa-pmc',
    'nova-scheduler.conf.sample',
)


class OptionsTest(unittest.TestCase):
    def test_both_plugins_may_register_them(self):
        conf = cfg.ConfigOpts()
        for _ in range(2):
            scheduler_conf.register_opts(conf)
        conf([], default_config_files=[])
        self.assertEqual(10.0, conf.numa_pmc.weight_multiplier)

    def test_the_sample_shows_every_option_with_its_default(self):
        """A stale sample misleads: `make config` writes it anew."""
        with open(SAMPLE, encoding='utf-8') as file:
            shown = dict(re.findall(r'(?m)^#(\w+) = (.*)$', file.read()))
        self.assertEqual(
            {
                opt.name: str(opt.default).lower()
                for _, opts in scheduler_conf.list_opts()
                for opt in opts
            },
            shown,
        )
