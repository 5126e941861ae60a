# SPDX-License-Identifier: Apache-2.0
"""The CPUs and memory nodes that the groups above a guest grant it are known."""

import os

from nova_numa_pmc import model
from nova_numa_pmc.host import allowed, guests
from tests.cases.root import RootCase
from tests.fixtures import fake_host

SLICES = 'sys/fs/cgroup/machine.slice'
NORT = SLICES + '/machine-nort.slice'
GUEST = model.Guest('u', 'g', 2, 1 << 29)


def partition(path):
    """Return the XML of a partition."""
    return '<resource><partition>%s</partition></resource>' % path


class GrantCase(RootCase):
    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def allow(self, group, cpus, mems='0-1'):
        """Create a group with these effective sets."""
        self.write(group + '/cpuset.cpus.effective', cpus + '\n')
        self.write(group + '/cpuset.mems.effective', mems + '\n')

    def grant(self, guest=GUEST):
        (granted,) = allowed.with_grants([guest], self.root)
        return granted.granted_cpus, granted.granted_mems


class PartitionTest(GrantCase):
    def test_a_partition_maps_to_the_slice_that_libvirt_makes_of_it(self):
        for path, expected in (
            ('/machine', ['machine.slice']),
            ('/machine/nort', ['machine.slice', 'machine-nort.slice']),
            ('/rt', ['rt.slice']),
            (
                '/machine/a-b/c',
                ['machine.slice', 'machine-a\\x2db.slice', 'machine-a\\x2db-c.slice'],
            ),
            ('/.hidden', ['\\x2ehidden.slice']),
            ('/é', ['\\xc3\\xa9.slice']),
            ('/', []),
            ('/machine//nort', []),
            ('/' + 'x' * 300, []),
        ):
            with self.subTest(path):
                self.assertEqual(expected, allowed.slice_names(path))

    def test_a_guest_gets_what_the_innermost_slice_of_its_partition_has(self):
        self.allow(SLICES, '2-7')
        self.allow(NORT, '2-3')
        self.assertEqual(({2, 3, 4, 5, 6, 7}, None), self.grant())
        self.assertEqual(({2, 3}, None), self.grant(GUEST._replace(partition='/machine/nort')))
        self.assertEqual(
            ({2, 3, 4, 5, 6, 7}, None), self.grant(GUEST._replace(partition='/machine/other'))
        )

    def test_groups_whose_names_systemd_has_to_escape_are_found(self):
        for name in ('_infra', 'cpu', 'io'):
            self.allow('sys/fs/cgroup/_%s.slice' % name, '2-3')
            self.assertEqual({2, 3}, self.grant(GUEST._replace(partition='/' + name))[0])

    def test_a_host_without_cgroups_limits_nothing(self):
        self.assertEqual((None, None), self.grant())
        self.assertEqual([], allowed.limits(GUEST, self.root))

    def test_a_slice_that_does_not_exist_yet_gets_what_those_above_it_have(self):
        self.allow('sys/fs/cgroup', '0-7')
        guest = GUEST._replace(partition='/machine/nort')
        self.assertEqual((None, None), self.grant(guest))
        self.allow(SLICES, '1-3')
        self.assertEqual(({1, 2, 3}, None), self.grant(guest))

    def test_partitions_without_systemd_are_found(self):
        self.allow('sys/fs/cgroup/machine', '2-7')
        self.allow('sys/fs/cgroup/machine/nort.partition', '2-3')
        self.assertEqual(({2, 3}, None), self.grant(GUEST._replace(partition='/machine/nort')))


class RunningTest(GrantCase):
    def grants(self):
        (guest,), _ = guests.read_running(self.root)
        return guest.granted_cpus, guest.granted_mems, allowed.limits(guest, self.root)

    def test_a_running_guest_gets_what_its_scope_has(self):
        tree = self.host.launch(1)
        self.assertEqual((None, None, []), self.grants())
        scope = os.path.relpath(tree.scope, self.root)
        self.allow(scope, '4-5', '1')
        cpus, mems, (text,) = self.grants()
        self.assertEqual(({4, 5}, {1}), (cpus, mems))
        self.assertRegex(text, r'1\.scope allows only CPUs 4-5 and the memory of nodes 1')

    def test_each_group_that_takes_cpus_is_named(self):
        tree = self.host.launch(1)
        self.allow(SLICES, '2-7')
        self.allow(os.path.relpath(tree.scope, self.root), '2-3')
        _, _, (above, own) = self.grants()
        self.assertIn('machine.slice allows only CPUs 2-7', above)
        self.assertIn('.scope allows only CPUs 2-3', own)

    def test_our_own_sets_below_the_scope_limit_nothing(self):
        tree = self.host.launch(1)
        for directory in (tree.parent, *tree.children):
            tree.write(os.path.join(directory, 'cpuset.cpus'), '4-7')
        self.assertEqual((None, None, []), self.grants())

    def test_on_v1_a_scope_that_has_lost_cpus_limits_nothing_but_its_slice_does(self):
        tree = self.host.launch(1, version=1)
        self.write(os.path.relpath(tree.scope, self.root) + '/cpuset.effective_cpus', '0-6\n')
        self.assertIsNone(self.grants()[0])
        self.write('sys/fs/cgroup/cpuset/machine.slice/cpuset.effective_cpus', '2-7\n')
        self.assertEqual({2, 3, 4, 5, 6, 7}, self.grants()[0])
