# SPDX-License-Identifier: Apache-2.0
"""Options and CPU sets that do not suit the host, or Nova's own options, are found."""

import os

from nova_numa_pmc.checks import capacity
from nova_numa_pmc.host import nova_conf
from tests.cases.root import RootCase
from tests.fixtures import sysfs

OURS = 'etc/nova-numa-pmc/nova-numa-pmc.conf'


def codes(findings):
    return [finding.code for finding in findings]


class CapacityTest(RootCase):
    def conf(self, text=''):
        self.write('nova.conf', text)
        return nova_conf.NovaConf([os.path.join(self.root, 'nova.conf')])

    @property
    def path(self):
        return os.path.join(self.root, OURS)

    def test_what_is_no_option_is_found_with_the_option_that_is_meant(self):
        for text, message in (
            ('[agnet]\nrebalance = auto', 'no option [agnet] rebalance'),
            ('[agent]\nrebalanse = on', 'no option [agent] rebalanse'),
            ('[placement]\nrebalance = auto', 'no option [placement] rebalance'),
        ):
            with self.subTest(text):
                self.write(OURS, text)
                (finding,) = capacity.check_options(self.path)
                self.assertEqual(('option-unknown', self.path), (finding.code, finding.file))
                self.assertIn(message, finding.message)
                self.assertIn('did you mean [agent] rebalance?', finding.message)
        self.write(OURS, '[Agent]\nrebalance = auto\n[Hook]\nbind: yes\n')
        self.assertEqual([], codes(capacity.check_options(self.path)))

    def test_a_syntax_error_is_found_with_its_file_and_line(self):
        for text in ('[agent]\n[hook\n', '[agent]\nrebalance on\n'):
            with self.subTest(text):
                self.write(OURS, text)
                (error,) = [f for f in capacity.check_options(self.path) if f.severity == 'error']
                self.assertTrue(error.message.startswith(self.path + ': line 2, '), error.message)
                self.assertIn('correct it', error.remedy)

    def test_a_value_that_oslo_config_refuses_is_told_without_its_objects(self):
        self.write(OURS, '[agent]\nrebalance = maybe\n')
        (finding,) = capacity.check_options(self.path)
        self.assertEqual(
            self.path + ': Value for option rebalance is not valid: '
            "Valid values are [off, dry-run, auto], but found 'maybe'",
            finding.message,
        )

    def test_a_wrong_option_of_ours_is_found(self):
        self.assertEqual([], codes(capacity.check_options(self.path)))
        self.write(OURS, '[hook]\ntimeout_s = soon\n')
        (finding,) = capacity.check_options(self.path)
        self.assertIn('timeout_s', finding.message)

    def test_a_wrong_option_of_the_agent_is_found_beside_one_of_the_hook(self):
        self.write(OURS, '[agent]\nmoved_percent_per_day = x\n[hook]\ntimeout_s = soon\n')
        agents, hooks = capacity.check_options(self.path)
        self.assertIn('moved_percent_per_day', agents.message)
        self.assertIn('timeout_s', hooks.message)

    def test_a_ram_ratio_unlike_novas_is_found(self):
        for ours, nova, expected in (
            (None, '', []),
            ('1.5', '', ['ram-ratio']),
            ('1.5', 'ram_allocation_ratio = 1.5', []),
            ('1.0', 'ram_allocation_ratio = 0.0', []),
            ('1.0', 'initial_ram_allocation_ratio = 1.5', ['ram-ratio']),
            ('2', 'ram_allocation_ratio = 2\ninitial_ram_allocation_ratio = 1.5', []),
        ):
            with self.subTest(ours=ours, nova=nova):
                sysfs.write(
                    self.root,
                    OURS,
                    '[placement]\nram_allocation_ratio = %s\n' % ours if ours else '',
                )
                conf = self.conf('[DEFAULT]\n%s\n' % nova)
                self.assertEqual(expected, codes(capacity.check_ram_ratio(self.root, conf)))

    def test_memory_that_guests_get_none_of_is_found(self):
        sysfs.build_sysfs(self.root, [*sysfs.equal_nodes(2), sysfs.FakeNode(2, '', 96 << 30)])
        (finding,) = capacity.check_withheld_memory(self.root, self.conf())
        self.assertEqual(('memory-withheld', 'warning'), (finding.code, finding.severity))
        self.assertIn('node 2 has 98304 MiB of memory, but no CPUs online', finding.message)
        self.assertIn('reserved_host_memory_mb = 98816 or more', finding.remedy)
        self.assertIn('AllowedMemoryNodes=0-1 ', finding.remedy)
        self.assertIn('guest_memory_nodes = 2 ', finding.remedy)
        (finding,) = capacity.check_withheld_memory(
            self.root, self.conf('[DEFAULT]\nreserved_host_memory_mb = 98816\n')
        )
        self.assertEqual('note', finding.severity)
        self.write(OURS, '[placement]\nguest_memory_nodes = 2\n')
        self.assertEqual([], codes(capacity.check_withheld_memory(self.root, self.conf())))

    def test_a_shared_set_with_isolated_cpus_or_too_few_nodes_is_found(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2), isolated='3', nohz_full='1-7')
        for value, expected in (
            ('', []),
            ('0-2,4-7', []),
            ('1,5', []),
            ('0-2', ['cpu-shared-set-nodes']),
            ('0-7', ['cpu-shared-set-isolated']),
            ('0-7,^3', []),
            ('four', ['cpu-shared-set-invalid']),
        ):
            with self.subTest(value):
                conf = self.conf('[compute]\ncpu_shared_set = %s\n' % value)
                self.assertEqual(expected, codes(capacity.check_shared_set(self.root, conf)))

    def test_the_set_of_older_releases_is_checked_in_place_of_the_shared_one(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2))
        conf = self.conf('[DEFAULT]\nvcpu_pin_set = 0-3\n[compute]\ncpu_shared_set = 0-7\n')
        (found,) = capacity.check_shared_set(self.root, conf)
        self.assertIn('vcpu_pin_set has no CPU on node 1', found.message)

    def test_a_shared_set_is_not_checked_on_an_unreadable_host(self):
        conf = self.conf('[compute]\ncpu_shared_set = 0-3\n')
        self.write('sys/devices/system/node/online', 'x')
        self.assertEqual([], codes(capacity.check_shared_set(self.root, conf)))
