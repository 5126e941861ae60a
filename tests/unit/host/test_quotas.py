# SPDX-License-Identifier: Apache-2.0
"""CPU quotas of a guest's control groups are found on both versions, with throttled time."""

import os
import tempfile

from nova_numa_pmc.host import guest_use
from tests.cases.root import RootCase
from tests.fixtures import cgroups


class QuotasTest(RootCase):
    def tree(self, layout=cgroups.NESTED):
        tree = cgroups.GuestCgroups(self.root, layout=layout)
        for at, child in enumerate(tree.children):
            tree.write_file(os.path.join(child, 'cpu.max'), 'max 100000\n')
            tree.write_file(os.path.join(child, 'cgroup.threads'), '%d\n' % (50 + at))
        return tree

    def find(self):
        return guest_use.find_quotas(4242, self.root)

    def test_quotas_of_a_vcpu_the_emulator_and_all_are_found(self):
        for layout in (cgroups.NESTED, cgroups.FLAT, cgroups.WITHOUT_SYSTEMD):
            with self.subTest(layout=layout), tempfile.TemporaryDirectory() as self.root:
                tree = self.tree(layout)
                tree.write_file(os.path.join(tree.vcpus[1], 'cpu.max'), '5000 100000\n')
                tree.write_file(os.path.join(tree.emulator, 'cpu.max'), '200000 100000\n')
                tree.write_file(os.path.join(tree.parent, 'cpu.max'), '150000 50000\n')
                groups, _ = self.find()
                self.assertEqual(
                    [
                        (tree.emulator, 2.0, {50}),
                        (tree.vcpus[1], 0.05, {52}),
                        (tree.parent, 3.0, None),
                    ],
                    [(group.directory, group.cores, group.tids) for group in groups],
                )

    def test_quotas_on_v1_are_found(self):
        path = 'machine.slice/machine-qemu\\x2d7.scope/libvirt'
        tree = cgroups.GuestCgroups(self.root, version=1)
        tree.write_file(
            'proc/self/mountinfo',
            '36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n',
        )
        tree.set_cgroup('5:cpu,cpuacct:/%s/emulator\n0::/\n' % path)
        base = os.path.join(self.root, 'sys/fs/cgroup/cpu,cpuacct', path)
        for name, quota in (('emulator', -1), ('vcpu0', 25000), ('vcpu1', -1)):
            tree.write_file(os.path.join(base, name, 'cpu.cfs_quota_us'), '%d\n' % quota)
            tree.write_file(os.path.join(base, name, 'cpu.cfs_period_us'), '100000\n')
            tree.write_file(os.path.join(base, name, 'tasks'), '61\n62\n')
        tree.write_file(os.path.join(base, 'vcpu0/cpu.stat'), 'nr_periods 3\nthrottled_time 77\n')
        [group], emulator_tids = self.find()
        self.assertEqual((1, 0.25, {61, 62}), (group.version, group.cores, group.tids))
        self.assertEqual((77, (61, 62)), (guest_use.throttled_ns(group), emulator_tids))

    def test_a_quota_that_cannot_be_read_is_none(self):
        self.assertEqual(((), ()), self.find())
        tree = self.tree()
        for text in ('', '5000', 'x y', '5000 0', '5000 100000 7'):
            tree.write_file(os.path.join(tree.vcpus[0], 'cpu.max'), text)
            self.assertEqual((), self.find()[0])
