# SPDX-License-Identifier: Apache-2.0
"""Test the sampler on a host without a PMU, and with software events of this kernel."""

import contextlib
import os
import tempfile
from unittest import mock

from hypothesis import HealthCheck, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.agent import sampling
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core import pressure
from nova_numa_pmc.core.measurements import COUNTED, INFERRED
from nova_numa_pmc.host import firmware
from nova_numa_pmc.host.perf import event_table, events
from nova_numa_pmc.json_values import to_json
from nova_numa_pmc.model import MIB
from tests.cases.counting import CountingCase
from tests.cases.root import RootCase
from tests.fixtures import domains, fake_host, measured_host
from tests.fixtures.software_events import LOCAL, REMOTE
from tests.fixtures.working_child import touch

SECOND = measured_host.SECOND_NS


class SamplingCase(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)
        self.host.set_idle()
        self.sampler = self.open()

    def open(self, **options):
        sampler = sampling.Sampler(opts.CounterOptions(**options), self.root)
        self.addCleanup(sampler.close)
        return sampler

    def sample(self, at_s):
        return self.sampler.sample(at_s * SECOND, 1000.0 + at_s)

    def launch(self, number, bytes_by_node, **more):
        tree = self.host.launch(number, bytes_by_node, **more)
        self.run_to(number, 0)
        return tree

    def run_to(self, number, run_s, wait_s=0.0, cpu=0):
        self.host.set_thread_times(4000 + number, 5000 + number, run_s, wait_s, cpu)


class SamplerTest(SamplingCase):
    def test_the_first_sample_has_no_rates(self):
        self.launch(1, {0: MIB, 1: MIB})
        first = self.sample(5)
        self.assertEqual((1005.0, 0.0), (first.taken_s, first.elapsed_s))
        [guest] = first.guests
        self.assertEqual(
            (None, None, (), None, ''),
            (
                guest.cores,
                guest.waiting_cores,
                guest.cores_by_node,
                guest.remote_ratio,
                guest.source,
            ),
        )
        self.assertEqual(((0, MIB), (1, MIB)), guest.bytes_by_node)
        self.assertEqual(
            [(0, 4.0, None, None), (1, 4.0, None, None)],
            [
                (node.id, node.capacity_cores, node.demand_cores, node.pressure)
                for node in first.nodes
            ],
        )

    def test_guests_and_nodes_are_sampled_by_pages(self):
        self.launch(1, {0: MIB, 1: 3 * MIB})
        self.launch(2, {0: MIB, 1: 0})
        self.sample(0)
        self.run_to(1, 5, 2.5)
        self.run_to(2, 10, cpu=1)
        self.host.set_cpu_times(
            {cpu: 5 if cpu < 4 else 1 for cpu in range(8)}, dict.fromkeys(range(8), 2.5)
        )
        sample = self.sample(5)
        self.assertEqual(('pages', 5.0), (sample.source, sample.elapsed_s))
        first, second = sample.guests
        self.assertEqual(
            ('pages', INFERRED, 1.0, 0.5, 0.75),
            (first.source, first.basis, first.cores, first.waiting_cores, first.remote_ratio),
        )
        self.assertEqual((((0, 2.0),), 0.0), (second.cores_by_node, second.remote_ratio))
        busy, idle = sample.nodes
        # The CPUs were busy for 4 cores; 2 more were waiting there, half a core of it for a guest.
        self.assertEqual(
            (4.5, 1.125, 1.125, 0.5),
            (busy.demand_cores, busy.cpu_ratio, busy.pressure, busy.waiting_cores),
        )
        self.assertAlmostEqual(0.8, idle.demand_cores)
        self.assertEqual((None, None), (idle.remote_ratio, idle.bandwidth_ratio))
        self.assertEqual(3 << 30, idle.free_bytes)
        self.assertTrue(any(text.startswith('guests by thread: ') for text in sample.unavailable))
        self.assertEqual((), sample.problems)

    def test_latencies_are_those_of_the_firmware_where_it_has_a_whole_row(self):
        two = model.Topology(
            tuple(model.Node(at, frozenset((at,)), MIB) for at in range(2)),
            ((10, 20), (20, 10)),
            (),
        )
        for rated, expected in (
            ({(0, 0): 60.0, (0, 1): 100.0, (1, 1): 70.0}, ((60.0, 100.0), (160.0, 80.0))),
            ({(0, 0): 60.0, (0, 7): 100.0}, ((80.0, 160.0), (160.0, 80.0))),  # other numbers
        ):
            with (
                self.subTest(rated=rated),
                mock.patch.object(firmware, 'read_latencies_ns', return_value=rated),
            ):
                self.assertEqual(expected, sampling.Sampler(root=self.root).latencies_ns(two))

    def test_waiting_of_others_than_guests_does_not_count_as_demand(self):
        self.launch(1, {0: MIB})
        self.sample(0)
        self.run_to(1, 5, 2.5)
        self.host.set_thread_times(77, 77, 5, 500.0, cpu=0, name='backup')
        self.host.set_cpu_times(dict.fromkeys(range(8), 2))
        sample = self.sample(5)
        self.assertAlmostEqual(4 * 0.4 + 0.5, sample.nodes[0].demand_cores)
        self.assertAlmostEqual(4 * 0.4, sample.nodes[1].demand_cores)

    def test_cpu_time_that_was_stolen_comes_off_the_capacity(self):
        self.sample(0)
        self.host.set_cpu_times(dict.fromkeys(range(8), 2), stolen_by_cpu={0: 5, 1: 5, 4: 1})
        first, second = self.sample(5).nodes
        self.assertEqual(
            (2.0, 2.0, 0.8), (first.capacity_cores, first.stolen_cores, round(first.cpu_ratio, 3))
        )
        self.assertEqual((3.8, 0.2), (second.capacity_cores, second.stolen_cores))
        self.host.set_cpu_times(
            dict.fromkeys(range(8), 2), stolen_by_cpu=dict.fromkeys(range(8), 10)
        )
        self.assertEqual(0.2, self.sample(10).nodes[0].capacity_cores)  # never 0, as without CPUs

    def test_time_held_back_by_a_quota_does_not_count_as_waiting(self):
        tree = self.launch(1, {0: MIB})
        for directory, text in ((tree.vcpus[0], '5000 100000'), (tree.emulator, 'max 100000')):
            tree.write_file(os.path.join(directory, 'cpu.max'), text + '\n')
        tree.write_file(os.path.join(tree.vcpus[0], 'cgroup.threads'), '5001\n')
        self.run_to(1, 0, 0)
        self.sample(0)
        self.run_to(1, 0.25, 4.745)
        sample = self.sample(5)
        self.assertAlmostEqual(0.05, sample.guests[0].cores)
        self.assertEqual(
            (0.0, 0.0), (sample.guests[0].waiting_cores, sample.nodes[0].demand_cores)
        )
        # It gets only half of its quota because others run.
        self.run_to(1, 0.375, 9.5)
        sample = self.sample(10)
        self.assertAlmostEqual(0.025, sample.guests[0].waiting_cores)
        self.assertAlmostEqual(0.025, sample.nodes[0].demand_cores)

    def test_resctrl_gives_nodes_their_bandwidth(self):
        self.sampler = self.open(bandwidth_max_bytes_per_sec=((0, 1e6), (1, 1e6)))
        self.host.set_l3_domains({cpu: cpu // 4 for cpu in range(8)})
        self.launch(1, {0: MIB})
        for at_s in (0, 5):
            self.host.set_resctrl_group('', {0: (at_s * 640_000, at_s * 320_000), 1: (0, 0)})
            self.run_to(1, at_s)
            sample = self.sample(at_s)
            self.host.set_cpu_times(dict.fromkeys(range(8), at_s + 5), dict.fromkeys(range(8), 0))
        self.assertEqual('resctrl', sample.source)
        self.assertEqual((1250.0, 1250.0, 0.5), sample.guests[0][8:11])  # one core of four
        self.assertEqual(
            [320_000.0, 320_000.0], [node.bandwidth_bytes_per_sec for node in sample.nodes]
        )
        self.assertEqual([0.32, 0.32], [node.bandwidth_ratio for node in sample.nodes])

    def test_traffic_of_guests_is_not_the_bandwidth_of_a_node_that_resctrl_does_not_know(self):
        self.host.set_l3_domains({cpu: cpu // 4 for cpu in range(8)})
        for number in (1, 2):
            self.launch(number, {0: MIB})
        for at_s in (0, 5):
            self.host.set_resctrl_group('', {0: (640_000 * at_s, 0), 1: ('Unavailable', 0)})
            self.host.set_resctrl_group(
                'own', {0: (0, 0), 1: (64_000 * at_s, 64_000 * at_s)}, tasks=(5002,)
            )
            self.run_to(1, at_s)
            self.run_to(2, at_s, cpu=4)
            self.host.set_cpu_times(dict.fromkeys(range(8), at_s), dict.fromkeys(range(8), 0))
            sample = self.sample(at_s)
        self.assertEqual(64_000.0, sample.guests[1].bandwidth_bytes_per_sec)
        self.assertEqual([None, None], [node.bandwidth_bytes_per_sec for node in sample.nodes])

    def test_a_node_whose_cpu_comes_or_goes_is_unknown_for_a_tick(self):
        self.launch(1, {0: MIB})
        self.sample(0)
        for at_s, online, known in (
            (5, '0-6', False),
            (10, '0-6', True),
            (15, '0-7', False),
            (20, '0-7', True),
        ):
            self.host.write('sys/devices/system/cpu/online', online + '\n')
            self.host.write('sys/devices/system/node/node1/cpulist', '4-%s\n' % online[-1])
            cpus = dict.fromkeys(range(int(online[-1]) + 1), at_s / 2)
            self.host.set_cpu_times(cpus, cpus)
            nodes = self.sample(at_s).nodes
            with self.subTest(at_s=at_s):
                self.assertEqual(
                    (True, known or online == '0-6'),
                    (nodes[0].demand_cores is not None, nodes[1].demand_cores is not None),
                )

    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=40)
    @given(
        st.sampled_from(
            (
                'proc/stat',
                'proc/schedstat',
                'proc/4001/task/5001/stat',
                'proc/4001/cgroup',
                'proc/4001/task/5001/schedstat',
                'run/libvirt/qemu/instance-00000001.xml',
                'sys/devices/system/node/node1/meminfo',
                'sys/fs/resctrl/mon_data/mon_L3_00/mbm_local_bytes',
                'proc/cpuinfo',
                'sys/devices/system/cpu/online',
                'sys/bus/event_source/devices/cpu/type',
            )
        ),
        st.binary(max_size=60),
    )
    def test_garbage_is_unknown_or_a_problem(self, path, garbage):
        with tempfile.TemporaryDirectory() as root:
            there = measured_host.MeasuredHost(root)
            self.addCleanup(there.close)
            there.set_idle()
            there.launch(1, {0: MIB})
            with contextlib.closing(sampling.Sampler(root=root)) as sampler:
                for at_s in (0, 5):
                    there.set_thread_times(4001, 5001, at_s)
                    if at_s:
                        there.write(path, garbage)
                    sample = sampler.sample(at_s * SECOND, 0.0)
            self.assertEqual({'nodes', 'guests'}, {'nodes', 'guests'} & to_json(sample).keys())
            for guest in sample.guests:
                self.assertTrue(guest.cores is None or guest.cores >= 0)
                self.assertTrue(guest.remote_ratio is None or 0 <= guest.remote_ratio <= 1)


class CountersTest(CountingCase, RootCase):
    """Page faults stand for local accesses, major ones (none) for remote ones."""

    OPTIONS = opts.CounterOptions(
        events=(
            ('local_dram', 'software/config=0x5/'),
            ('remote_dram', 'software/config=0x6/'),
            ('cycles', 'software/config=0x0/'),
            ('instructions', 'software/config=0x1/'),
        )
    )

    def setUp(self):
        super().setUp()
        for name in ('proc', 'sys'):
            os.symlink('/' + name, os.path.join(self.root, name))

    def launch(self, number):
        child = self.start_child(lambda: touch(1000 * number))
        xml = (
            domains.status(fake_host.domain_xml(number), child.pid)
            .replace(b"pid='4711'", b"pid='%d'" % child.pid)
            .replace(b"<vcpu id='1' pid='4712'/>", b'')
        )
        self.write('run/libvirt/qemu/%s.xml' % fake_host.name_of(number), xml)
        return child

    def test_six_guests_at_once_are_each_counted_right(self):
        guests = [self.launch(number) for number in range(1, 7)]
        with contextlib.closing(sampling.Sampler(self.OPTIONS, self.root)) as sampler:
            sampler.sample(0)
            before = [int(guest.field(7)) for guest in guests]
            ran = [measured_host.read_thread(guest.pid, guest.pid).run_ns for guest in guests]
            for guest in guests:
                guest.run()
            faults = [int(guest.field(7)) - old for guest, old in zip(guests, before)]
            sample = sampler.sample(2 * SECOND)
            self.assertEqual('guests by thread', sample.source)
            for at, counted in enumerate(sample.guests):
                self.assertEqual(
                    ('guests by thread', COUNTED, faults[at] / 2, 0.0, 0.0),
                    (counted.source, counted.basis, *counted[8:11]),
                )
                now = measured_host.read_thread(guests[at].pid, guests[at].pid).run_ns
                self.assertAlmostEqual((now - ran[at]) / (2 * SECOND), counted.cores, places=6)
                self.assertIsNotNone(counted.accesses_per_1000_instructions)
            self.assertLessEqual(sum(faults) / 2, sum(node.local_per_sec for node in sample.nodes))

    def test_no_descriptor_stays_open(self):
        before = len(os.listdir('/proc/self/fd'))
        self.launch(1)
        after = len(os.listdir('/proc/self/fd'))
        for _ in range(2):
            with contextlib.closing(sampling.Sampler(self.OPTIONS, self.root)) as sampler:
                sampler.sample(0)
                self.assertLess(after, len(os.listdir('/proc/self/fd')))
            self.assertEqual(after, len(os.listdir('/proc/self/fd')))
        self.assertLessEqual(before, after)

    def test_guests_alone_show_that_prefetches_are_counted(self):
        self.launch(1)
        for caveats, mlp in (
            ((), pressure.MLP_DEMAND),
            ((event_table.ANY_FILLS,), pressure.MLP_WITH_PREFETCH),
        ):
            chosen = tuple(event._replace(caveats=caveats) for event in (LOCAL, REMOTE))
            selection = events.EventSelection(events.CpuModel('', ''), None, chosen, ())
            with (
                mock.patch.object(events, 'select_events', return_value=selection),
                contextlib.closing(sampling.Sampler(self.OPTIONS, self.root)) as sampler,
            ):
                for at_s in (0, 1):
                    sampler.sample(at_s * SECOND)
            self.assertEqual(mlp, sampler.mlp)
