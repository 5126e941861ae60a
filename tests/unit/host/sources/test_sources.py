# SPDX-License-Identifier: Apache-2.0
"""Test the sources that do not open counters."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core.measurements import (
    ATTRIBUTED,
    COUNTED,
    Evidence,
    RunningGuest,
    ThreadTimes,
)
from nova_numa_pmc.host import topology
from nova_numa_pmc.host.sources import ladder, resctrl
from nova_numa_pmc.host.sources.ladder import SourceTick
from tests.cases.root import RootCase
from tests.fixtures import measured_host

SECOND = measured_host.SECOND_NS


def guest(number, cores_by_node, bytes_by_node=None, tids=(), cpu=0):
    return RunningGuest(
        model.Guest('u%d' % number, 'g%d' % number, 2, 1, pid=4000 + number),
        {tid: ThreadTimes(0, 0, cpu, 1) for tid in tids},
        sum(cores_by_node.values()),
        0.0,
        cores_by_node,
        bytes_by_node or {},
    )


class PagesTest(unittest.TestCase):
    def test_the_remote_ratio_by_pages_weighs_nodes_by_time_run(self):
        self.assertEqual(0.0, ladder.remote_ratio_of_pages({0: 1.5}, {0: 10, 1: 0}))
        self.assertEqual(1.0, ladder.remote_ratio_of_pages({0: 1.5}, {1: 10}))
        self.assertAlmostEqual(0.5, ladder.remote_ratio_of_pages({0: 1, 1: 1}, {0: 5, 1: 5}))
        self.assertAlmostEqual(0.4, ladder.remote_ratio_of_pages({0: 1, 1: 3}, {0: 3, 1: 7}))

    def test_the_remote_ratio_by_pages_is_unknown_without_time_or_pages(self):
        for cores, size in (({}, {0: 1}), ({0: 0.0}, {0: 1}), ({0: 1.0}, {}), ({0: 1.0}, {0: 0})):
            self.assertIsNone(ladder.remote_ratio_of_pages(cores, size))

    @given(
        st.dictionaries(st.integers(0, 3), st.floats(0, 100)),
        st.dictionaries(st.integers(0, 3), st.integers(0, 1 << 50)),
    )
    def test_the_remote_ratio_by_pages_is_from_0_to_1(self, cores, size):
        ratio = ladder.remote_ratio_of_pages(cores, size)
        self.assertTrue(ratio is None or 0 <= ratio <= 1)


class CpuAttributionTest(unittest.TestCase):
    OF_CPUS = {
        0: Evidence(local_per_sec=90.0, remote_per_sec=10.0, counted_ratio=1.0),
        1: Evidence(local_per_sec=0.0, remote_per_sec=40.0, counted_ratio=0.5),
    }

    def sample(self, guests, busy, of_cpus=OF_CPUS):
        return ladder.CpuAttribution().sample(SourceTick(0, SECOND, None, guests, busy, of_cpus))

    def test_counts_of_cpus_are_shared_by_busy_time(self):
        evidence = self.sample((guest(1, {0: 1.0}), guest(2, {0: 0.5, 1: 0.5})), {0: 2.0, 1: 1.0})
        self.assertEqual(
            ('cpus', ATTRIBUTED, 45.0, 5.0, 0.5),
            (*evidence['u1'][:4], evidence['u1'].counted_ratio),
        )
        self.assertEqual((22.5, 22.5), evidence['u2'][2:4])

    def test_guests_on_uncounted_nodes_or_idle_have_no_share(self):
        evidence = self.sample(
            (guest(1, {0: 1.0}), guest(2, {1: 0.5}), guest(3, {})),
            {0: 2.0, 1: 1.0},
            {0: self.OF_CPUS[0]},
        )
        self.assertEqual({'u1'}, evidence.keys())


class HostCase(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)
        self.topology = topology.read(self.root)

    def tick(self, at_s, *guests):
        return SourceTick(
            (at_s - 1) * SECOND, at_s * SECOND, self.topology, guests, {0: 2.0, 1: 1.0}, {}
        )


class ResctrlTest(HostCase):
    """Lines of 64 bytes; two domains, each of them a node."""

    def setUp(self):
        super().setUp()
        self.host.set_l3_domains({cpu: cpu // 4 for cpu in range(8)})
        self.source = resctrl.Resctrl(self.root)

    def set(self, group, total_0, local_0, total_1=0, local_1=0, tasks=()):
        self.host.set_resctrl_group(
            group, {0: (64 * total_0, 64 * local_0), 1: (64 * total_1, 64 * local_1)}, tasks
        )

    def rates_by_node_at(self, at_s):
        return {
            node: evidence[2:4]
            for node, evidence in self.source.evidence_by_node_at(at_s * SECOND).items()
        }

    def test_resctrl_traffic_is_shared_by_time_run_in_a_domain(self):
        self.set('', 1000, 500)
        self.assertEqual({}, self.source.sample(self.tick(1, guest(1, {0: 1.0}))))
        self.set('', 1200, 650, 40, 0)
        evidence = self.source.sample(
            self.tick(2, guest(1, {0: 1.0}), guest(2, {1: 1.0}), guest(3, {}))
        )
        self.assertEqual(('resctrl', ATTRIBUTED, 75.0, 25.0, None, 6400.0), evidence['u1'][:6])
        self.assertEqual((0.0, 40.0), evidence['u2'][2:4])
        self.assertEqual({'u1', 'u2'}, evidence.keys())
        self.assertEqual({0: (150.0, 50.0), 1: (0.0, 40.0)}, self.rates_by_node_at(2))
        self.assertEqual({}, self.rates_by_node_at(3))

    def test_nodes_have_no_accesses_where_local_traffic_is_not_counted(self):
        for at_s in (1, 2):
            self.host.set_resctrl_group('', {0: (6400 * at_s, 'Unavailable'), 1: (0, 0)})
            self.source.sample(self.tick(at_s, guest(1, {0: 1.0})))
        self.assertEqual({1: (0.0, 0.0)}, self.rates_by_node_at(2))

    def test_a_guest_with_a_group_of_its_own_is_counted(self):
        for total in (0, 100):
            self.set('', 0, 0)
            self.set('qemu-1-x-vcpus_0-1', total, total // 4, tasks=(51, 52))
            self.set('qemu-1-x-vcpus_0-1/mon_groups/vcpus_0', total, 0, tasks=(51,))
            self.set('shared', 1, 1, tasks=(61, 99))
            evidence = self.source.sample(
                self.tick(
                    1 + total // 100,
                    guest(1, {0: 1.0}, tids=(51, 52)),
                    guest(2, {0: 1.0}, tids=(61,)),
                )
            )
        self.assertEqual((COUNTED, 25.0, 75.0), evidence['u1'][1:4])
        self.assertEqual(ATTRIBUTED, evidence['u2'].basis)

    def test_resctrl_is_unknown_after_a_gap_a_step_back_or_a_new_group(self):
        def steps(first, second, at_s=2):
            source = resctrl.Resctrl(self.root)
            self.set('', first, 0)
            source.sample(self.tick(1, guest(1, {0: 1.0})))
            second()
            return source.sample(self.tick(at_s, guest(1, {0: 1.0})))

        self.assertIn('u1', steps(10, lambda: self.set('', 20, 0)))
        self.assertEqual({}, steps(10, lambda: self.set('', 20, 0), at_s=3))
        self.assertEqual({}, steps(10, lambda: self.set('', 9, 0)))
        self.assertEqual(
            {}, steps(10, lambda: self.host.set_resctrl_group('', {0: ('Unavailable', 'Error')}))
        )
        self.assertEqual({}, steps(10, lambda: self.set('new', 5, 5)))

    def test_resctrl_traffic_of_a_domain_with_several_nodes_belongs_to_none(self):
        self.host.set_l3_domains(dict.fromkeys(range(8), 0))
        for total in (0, 100):
            self.host.set_resctrl_group('', {0: (6400 * total, 3200 * total)})
            self.source.sample(self.tick(1 + total // 100))
        self.assertEqual({}, self.rates_by_node_at(2))

    def test_resctrl_counts_sub_numa_clusters_one_by_one_where_linux_does(self):
        self.host.set_l3_domains(dict.fromkeys(range(8), 0))
        for total in (1, 101):
            self.host.set_resctrl_group('', {0: (6400 * total, 3200 * total)})
            for node, lines in ((0, total), (1, 1)):
                below = 'sys/fs/resctrl/mon_data/mon_L3_00/mon_sub_L3_%02d/' % node
                self.host.write(below + 'mbm_total_bytes', '%d\n' % (64 * lines))
                self.host.write(below + 'mbm_local_bytes', '%d\n' % (48 * lines))
            self.source.sample(self.tick(1 + total // 100))
        self.assertEqual({0: (75.0, 25.0), 1: (0.0, 0.0)}, self.rates_by_node_at(2))

    def test_a_group_without_assigned_counters_hides_only_itself(self):
        for total in (1, 101):
            self.host.set_resctrl_group('', {0: ('Unassigned', 'Unassigned')})
            self.set('mine', total, total // 4, tasks=(51,))
            evidence = self.source.sample(
                self.tick(
                    1 + total // 100,
                    guest(1, {0: 1.0}, tids=(51,)),
                    guest(2, {0: 1.0}, tids=(61,)),
                )
            )
        self.assertEqual({'u1'}, evidence.keys())
        self.assertEqual((COUNTED, 75.0, 25.0), (evidence['u1'].basis, *evidence['u1'][2:4][::-1]))

    @given(st.binary(max_size=30))
    def test_garbage_in_resctrl_files_gives_no_traffic(self, text):
        for at_s in (1, 2):
            self.host.set_resctrl_group('', {0: (100, 50), 1: (100, 50)})
            self.host.write('sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes', text)
            self.host.write('sys/fs/resctrl/g/mon_data/mon_L3_xx/mbm_total_bytes', text)
            self.host.write('sys/fs/resctrl/g/tasks', text)
            sampled = self.source.sample(self.tick(at_s, guest(1, {0: 1.0}, tids=(5,))))
        for evidence in sampled.values():
            self.assertEqual((0.0, 0.0), evidence[2:4])
