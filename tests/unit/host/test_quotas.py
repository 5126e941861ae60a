# SPDX-License-Identifier: Apache-2.0
"""CPU quotas are found on both versions of control groups, and limit for how long threads wait."""

import os
import tempfile

from hypothesis import given, strategies as st

from nova_numa_pmc.host import guest_use
from tests.cases.root import RootCase
from tests.fixtures import cgroups

SECOND = 10**9
TIMES = st.integers(0, 5 * SECOND)
QUOTAS = st.lists(
    st.builds(guest_use.Quota, st.floats(0.01, 8.0), st.none() | st.frozensets(st.integers(1, 4))),
    max_size=3,
)


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
                self.assertEqual(((2.0, {50}), (0.05, {52}), (3.0, None)), self.find()[0])

    def test_quotas_on_v1_are_found(self):
        path = 'machine.slice/machine-qemu\\x2d7.scope/libvirt'
        tree = cgroups.GuestCgroups(self.root, version=1)
        tree.set_cgroup('5:cpu,cpuacct:/%s/emulator\n0::/\n' % path)
        base = os.path.join(self.root, 'sys/fs/cgroup/cpu', path)
        for name, quota in (('emulator', -1), ('vcpu0', 25000), ('vcpu1', -1)):
            tree.write_file(os.path.join(base, name, 'cpu.cfs_quota_us'), '%d\n' % quota)
            tree.write_file(os.path.join(base, name, 'cpu.cfs_period_us'), '100000\n')
            tree.write_file(os.path.join(base, name, 'tasks'), '61\n62\n')
        self.assertEqual((((0.25, {61, 62}),), (61, 62)), self.find())

    def test_a_quota_that_cannot_be_read_is_none(self):
        self.assertEqual(((), ()), self.find())
        tree = self.tree()
        for text in ('', '5000', 'x y', '5000 0', '5000 100000 7'):
            tree.write_file(os.path.join(tree.vcpus[0], 'cpu.max'), text)
            self.assertEqual((), self.find()[0])

    @given(st.dictionaries(st.integers(1, 5), st.tuples(TIMES, TIMES)), QUOTAS)
    def test_waiting_is_never_above_the_kernels_nor_what_a_quota_leaves(self, uses, quotas):
        waits_ns = guest_use.waited_ns(uses, quotas, 5 * SECOND)
        self.assertEqual(uses.keys(), waits_ns.keys())
        for tid, waited in waits_ns.items():
            self.assertTrue(0 <= waited <= uses[tid][1])
        for quota in quotas:
            mine = [tid for tid in uses if quota.tids is None or tid in quota.tids]
            left = max(0.0, quota.cores * 5 * SECOND - sum(uses[tid][0] for tid in mine))
            self.assertLessEqual(sum(waits_ns[tid] for tid in mine), left + 1)
