# SPDX-License-Identifier: Apache-2.0
"""The samples for Nova's services show every option that we add, with its default."""

import re
import unittest

from oslo_config import cfg

from nova_numa_pmc.conf import compute as compute_conf, scheduler as scheduler_conf
from tests.fixtures import checkout

MODULES = {'nova-scheduler': scheduler_conf, 'nova-compute': compute_conf}


class NovasOptionsTest(unittest.TestCase):
    def test_novas_options_may_be_registered_together_and_twice(self):
        conf = cfg.ConfigOpts()
        for module in (*MODULES.values(), *MODULES.values()):
            module.register_opts(conf)
        conf([], default_config_files=[])
        for module in MODULES.values():
            for option in module.OPTIONS:
                self.assertEqual(option.default, conf.numa_pmc[option.name], option.name)

    def test_the_samples_show_every_option_of_nova_with_its_default(self):
        """An outdated sample is misleading; `make config` writes it anew."""
        for service, module in MODULES.items():
            with self.subTest(service):
                sample = checkout.TOP / f'etc/nova-numa-pmc/{service}.conf.sample'
                shown = dict(re.findall(r'(?m)^#(\w+) = (.*)$', sample.read_text('utf-8')))
                self.assertEqual(
                    {option.name: str(option.default).lower() for option in module.OPTIONS}, shown
                )
