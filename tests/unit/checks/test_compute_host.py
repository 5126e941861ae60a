# SPDX-License-Identifier: Apache-2.0
"""What works against placement is found: the kernel, daemons, options, and CPU sets."""

import os
import tempfile

from nova_numa_pmc.checks import compute_host
from nova_numa_pmc.host.nova_conf import NovaConf
from tests.cases.root import RootCase
from tests.fixtures import sysfs
from tests.fixtures.domains import domain, write_status
from tests.fixtures.model_records import two_level_distances
from tests.fixtures.services import add_process

OURS = 'etc/nova-numa-pmc/nova-numa-pmc.conf'


def codes(findings):
    return [finding.code for finding in findings]


class KernelTest(RootCase):
    def assert_codes(self, expected, check):
        self.assertEqual(expected, [finding.code for finding in check(self.root)])

    def test_a_host_of_one_node_or_an_unreadable_topology_is_found(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2))
        self.assert_codes([], compute_host.check_nodes)
        self.write('sys/devices/system/node/node1/distance', 'x\n')
        self.assert_codes(['topology-unreadable'], compute_host.check_nodes)
        with tempfile.TemporaryDirectory() as root:
            sysfs.build_sysfs(root, sysfs.equal_nodes(1))
            self.assertEqual(['one-node'], [f.code for f in compute_host.check_nodes(root)])

    def test_nodes_that_are_taken_for_one_place_are_named(self):
        def findings(distances):
            sysfs.build_sysfs(
                self.root,
                sysfs.equal_nodes(8, 1),
                distances=distances,
                l3s=[f'{at}' for at in range(8)],
                sockets=(0,) * 8,
                vendor='AuthenticAMD',
            )
            return list(compute_host.check_nodes(self.root))

        (finding,) = findings(two_level_distances(8, 2, 11, 12))
        self.assertEqual('memory-domains', finding.code)
        self.assertIn('nodes 0,1; nodes 2,3; nodes 4,5; nodes 6,7 are taken', finding.message)
        (finding,) = findings(two_level_distances(8, 8, 20, 20))
        self.assertIn('nodes 0,1,2,3,4,5,6,7 are taken', finding.message)

    def test_a_running_numad_is_found(self):
        self.assert_codes([], compute_host.check_numad)
        add_process(self.root, 7, ('/usr/bin/numad', '-i', '15'))
        self.assert_codes(['numad-running'], compute_host.check_numad)

    def test_numa_balancing_that_is_on_is_found(self):
        self.assert_codes([], compute_host.check_balancing)
        # 2 is memory tiering, available from Linux 5.18 on: no advice switches it off.
        for text, advised in (('0\n', None), ('1\n', '=0,'), ('2\n', None), ('3\n', '=2,')):
            with self.subTest(text=text):
                self.write('proc/sys/kernel/numa_balancing', text)
                remedies = [found.remedy for found in compute_host.check_balancing(self.root)]
                self.assertEqual(
                    [advised] if advised else [], [remedy[28:31] for remedy in remedies]
                )

    def test_emulated_devices_of_guests_and_a_missing_vhost_net_are_found(self):
        self.assert_codes(['vhost-net-absent'], compute_host.check_devices)
        self.write('dev/vhost-net', '')
        devices = (
            "<disk device='disk'><target dev='hda' bus='%s'/></disk>"
            "<disk device='cdrom'><target dev='hdd' bus='ide'/></disk>"
            "<interface type='bridge'><model type='%s'/></interface>"
        )
        for bus, card, expected in (
            ('virtio', 'virtio', []),
            ('scsi', 'virtio', []),
            ('sata', 'virtio', ['a (sata)']),
            ('ide', 'e1000', ['a (e1000, ide)']),
        ):
            write_status(self.root, 'a', domain(name='a', devices=devices % (bus, card)), 31)
            found = [found.message for found in compute_host.check_devices(self.root)]
            self.assertEqual(expected, [message.rpartition(': ')[2] for message in found])

    def test_ksm_that_merges_across_nodes_is_found(self):
        self.assert_codes([], compute_host.check_ksm)
        for run, across, expected in (
            ('0', '1', []),
            ('1', '0', []),
            ('1', '1', ['ksm-across-nodes']),
            ('2', '1', []),
        ):
            with self.subTest(run=run, across=across):
                self.write('sys/kernel/mm/ksm/run', run + '\n')
                self.write('sys/kernel/mm/ksm/merge_across_nodes', across + '\n')
                self.assert_codes(expected, compute_host.check_ksm)

    def test_counting_that_the_kernel_refuses_the_agent_is_found(self):
        self.assert_codes([], compute_host.check_counting)
        self.write('proc/sys/kernel/perf_event_paranoid', '3\n')
        self.assert_codes([], compute_host.check_counting)
        add_process(self.root, 8, ('/usr/bin/python3', '/usr/local/bin/nova-numa-agent'))
        perfmon, sys_admin = 1 << 38, 1 << 21
        uid = f'\t{os.geteuid()}'
        for level, held, expected in (
            (3, perfmon, ['counters-refused']),
            (3, perfmon | sys_admin, []),
            (2, perfmon, []),
            (-1, 0, []),
            (4, 0, ['counters-refused']),
        ):
            with self.subTest(level=level, held=held):
                self.write('proc/sys/kernel/perf_event_paranoid', f'{level}\n')
                status = f'Uid:{4 * uid}\nGid:\t0\nCapEff:\t{held:016x}\n'
                self.write('proc/8/status', status)
                self.assert_codes(expected, compute_host.check_counting)

    def test_transparent_huge_pages_that_are_off_are_found(self):
        self.assert_codes([], compute_host.check_huge_pages)
        for text, expected in (
            ('[always] madvise never', []),
            ('always [madvise] never', []),
            ('always madvise [never]', ['thp-off']),
        ):
            with self.subTest(text=text):
                self.write('sys/kernel/mm/transparent_hugepage/enabled', text + '\n')
                self.assert_codes(expected, compute_host.check_huge_pages)

    def test_a_powersave_governor_is_found_with_its_cpus(self):
        self.assertEqual([], list(compute_host.check_governor(self.root, NovaConf([]))))
        for cpu in range(4):
            self.write(
                'sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor' % cpu, 'performance\n'
            )
        self.write('sys/devices/system/cpu/cpuidle/current_driver', 'intel_idle\n')
        self.assertEqual([], list(compute_host.check_governor(self.root, NovaConf([]))))
        for cpu in (0, 2, 3):
            self.write(
                'sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor' % cpu, 'powersave\n'
            )
        (finding,) = compute_host.check_governor(self.root, NovaConf([]))
        self.assertIn('CPUs 0,2-3 is powersave', finding.message)
        self.write('nova.conf', '[libvirt]\ncpu_power_management = True\n')
        conf = NovaConf([os.path.join(self.root, 'nova.conf')])
        self.assertEqual(
            [], list(compute_host.check_governor(self.root, conf)), 'Nova sets them itself'
        )


class CapacityTest(RootCase):
    def conf(self, text=''):
        self.write('nova.conf', text)
        return NovaConf([os.path.join(self.root, 'nova.conf')])

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
                (finding,) = compute_host.check_options(self.path)
                self.assertEqual(('option-unknown', self.path), (finding.code, finding.file))
                self.assertIn(message, finding.message)
                self.assertIn('did you mean [agent] rebalance?', finding.message)
        self.write(OURS, '[Agent]\nrebalance = auto\n[Hook]\nbind: yes\n')
        self.assertEqual([], codes(compute_host.check_options(self.path)))

    def test_a_syntax_error_is_found_with_its_file_and_line(self):
        for text in ('[agent]\n[hook\n', '[agent]\nrebalance on\n'):
            with self.subTest(text):
                self.write(OURS, text)
                (error,) = [
                    f for f in compute_host.check_options(self.path) if f.severity == 'error'
                ]
                self.assertTrue(error.message.startswith(self.path + ': line 2, '), error.message)
                self.assertIn('correct it', error.remedy)

    def test_a_value_that_oslo_config_refuses_is_told_without_its_objects(self):
        self.write(OURS, '[agent]\nrebalance = maybe\n')
        (finding,) = compute_host.check_options(self.path)
        self.assertEqual(
            self.path + ': Value for option rebalance is not valid: '
            "Valid values are [off, dry-run, auto], but found 'maybe'",
            finding.message,
        )

    def test_a_wrong_option_of_the_agent_is_found_beside_one_of_the_hook(self):
        self.write(OURS, '[agent]\nmoved_percent_per_day = x\n[hook]\ntimeout_s = soon\n')
        agents, hooks = compute_host.check_options(self.path)
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
                self.assertEqual(expected, codes(compute_host.check_ram_ratio(self.root, conf)))

    def test_memory_that_guests_get_none_of_is_found(self):
        sysfs.build_sysfs(self.root, [*sysfs.equal_nodes(2), sysfs.FakeNode(2, '', 96 << 30)])
        (finding,) = compute_host.check_withheld_memory(self.root, self.conf())
        self.assertEqual(('memory-withheld', 'warning'), (finding.code, finding.severity))
        self.assertIn('node 2 has 98304 MiB of memory, but no CPUs online', finding.message)
        self.assertIn('reserved_host_memory_mb = 98816 or more', finding.remedy)
        self.assertIn('AllowedMemoryNodes=0-1 ', finding.remedy)
        self.assertIn('guest_memory_nodes = 2 ', finding.remedy)
        (finding,) = compute_host.check_withheld_memory(
            self.root, self.conf('[DEFAULT]\nreserved_host_memory_mb = 98816\n')
        )
        self.assertEqual('note', finding.severity)
        self.write(OURS, '[placement]\nguest_memory_nodes = 2\n')
        self.assertEqual([], codes(compute_host.check_withheld_memory(self.root, self.conf())))

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
                self.assertEqual(expected, codes(compute_host.check_shared_set(self.root, conf)))

    def test_the_set_of_older_releases_is_checked_in_place_of_the_shared_one(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2))
        conf = self.conf('[DEFAULT]\nvcpu_pin_set = 0-3\n[compute]\ncpu_shared_set = 0-7\n')
        (found,) = compute_host.check_shared_set(self.root, conf)
        self.assertIn('vcpu_pin_set has no CPU on node 1', found.message)

    def test_a_shared_set_is_not_checked_on_an_unreadable_host(self):
        conf = self.conf('[compute]\ncpu_shared_set = 0-3\n')
        self.write('sys/devices/system/node/online', 'x')
        self.assertEqual([], codes(compute_host.check_shared_set(self.root, conf)))
