# SPDX-License-Identifier: Apache-2.0
"""Test the sources that count, with software events of the kernel that runs the tests."""

import os
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import exceptions, model
from nova_numa_pmc.core import rates
from nova_numa_pmc.core.measurements import COUNTED, NodeSample, RunningGuest
from nova_numa_pmc.core.rates import CounterDelta, CounterReading
from nova_numa_pmc.host import topology
from nova_numa_pmc.host.perf import counters, events
from nova_numa_pmc.host.sources import counted, uncore
from nova_numa_pmc.host.sources.ladder import SourceTick
from tests.cases.counting import CountingCase
from tests.cases.root import RootCase
from tests.fixtures import measured_host, sysfs
from tests.fixtures.software_events import (
    ABSENT,
    CYCLES,
    INSTRUCTIONS,
    LOCAL,
    REMOTE,
    software_event,
)
from tests.fixtures.working_child import touch

SECOND = 10**9


def selecting(*chosen, missing=()):
    return lambda: events.EventSelection(events.CpuModel('', ''), None, chosen, missing)


class GuestsCase(CountingCase, RootCase):
    def setUp(self):
        super().setUp()
        os.symlink('/proc', os.path.join(self.root, 'proc'))
        self.child = self.start_child(lambda: touch(2000))

    def tick(self, at_s, *pids):
        guests = []
        for pid in pids:
            ran = measured_host.read_thread(pid, pid)
            guests.append(
                RunningGuest(
                    model.Guest('u%d' % pid, 'g', 1, 1, pid=pid),
                    {pid: ran} if ran else {},
                    1.0,
                    0.0,
                    {},
                    {},
                )
            )
        return SourceTick(
            (at_s - 1) * SECOND if at_s else None,
            at_s * SECOND,
            topology.read(),
            tuple(guests),
            {},
            {},
        )

    def source(self, *chosen, **more):
        source = counted.GuestCounters(selecting(*chosen, **more), root=self.root)
        self.addCleanup(source.close)
        return source

    def mediate(self):
        path = 'sys/module/kvm_intel/parameters/enable_mediated_pmu'
        sysfs.write(self.root, path, 'Y\n')
        return os.path.join(self.root, path)


class GuestCountersTest(GuestsCase):
    def test_each_guest_is_counted_by_its_threads(self):
        source = self.source(LOCAL, REMOTE, INSTRUCTIONS, CYCLES)
        idle = self.start_child(lambda: None)
        self.assertEqual({}, source.sample(self.tick(0, self.child.pid, idle.pid)))
        before = int(self.child.field(7))
        self.child.run()
        sampled = source.sample(self.tick(1, self.child.pid, idle.pid))
        evidence = sampled['u%d' % self.child.pid]
        self.assertEqual(
            ('guests by thread', COUNTED, 0.0, 1.0),
            (evidence.source, evidence.basis, evidence.remote_per_sec, evidence.counted_ratio),
        )
        self.assertEqual(int(self.child.field(7)) - before, evidence.local_per_sec)
        self.assertLess(0, evidence.cycles_per_sec)
        of_idle = sampled['u%d' % idle.pid]
        self.assertEqual((0.0, 0.0), of_idle[2:4])

    def test_threads_that_come_or_go_make_a_guest_unknown_for_a_tick(self):
        source = self.source(LOCAL, REMOTE)
        one = self.tick(1, self.child.pid)._replace(before_ns=SECOND)
        [guest], me = one.guests, os.getpid()
        more = one._replace(
            guests=(
                guest._replace(threads={**guest.threads, me: measured_host.read_thread(me, me)}),
            )
        )
        is_known = [bool(source.sample(tick)) for tick in (one, one, more, more, one, one)]
        self.assertEqual([False, True, False, True, False, True], is_known)

    def test_counts_over_more_than_one_tick_are_not_used(self):
        source = self.source(LOCAL, REMOTE)
        is_known = [bool(source.sample(self.tick(at_s, self.child.pid))) for at_s in (0, 1, 3, 4)]
        self.assertEqual([False, True, False, True], is_known)

    def test_without_remote_accesses_only_execution_is_counted(self):
        source = self.source(
            LOCAL, INSTRUCTIONS, CYCLES, missing=((rates.REMOTE_DRAM, 'not on this CPU'),)
        )
        source.sample(self.tick(0, self.child.pid))
        self.child.run()
        [evidence] = source.sample(self.tick(1, self.child.pid)).values()
        self.assertFalse(evidence.covers_memory)
        self.assertLess(0, evidence.cycles_per_sec)
        self.assertIn('not on this CPU', source.problems[0])

    def test_an_event_that_is_refused_is_unknown_and_not_0(self):
        source = self.source(LOCAL, ABSENT)
        for at_s in (0, 1, 2):
            sampled = source.sample(self.tick(at_s, self.child.pid))
            self.assertEqual(1, len(source.problems))
        self.assertFalse(sampled['u%d' % self.child.pid].covers_memory)

    def test_without_events_the_source_is_unavailable(self):
        with self.assertRaisesRegex(exceptions.SourceUnavailable, 'no such CPU'):
            self.source(missing=((rates.CYCLES, 'no such CPU'),)).sample(self.tick(0))

    def test_a_mediated_vpmu_switched_on_later_makes_guests_unavailable(self):
        source = self.source(LOCAL, REMOTE)
        source.sample(self.tick(0, self.child.pid))
        path = self.mediate()
        with self.assertRaisesRegex(exceptions.SourceUnavailable, 'enable_mediated_pmu=0'):
            source.sample(self.tick(1, self.child.pid))
        source.close()  # as the ladder does
        os.unlink(path)
        is_known = [bool(source.sample(self.tick(at_s, self.child.pid))) for at_s in (2, 3)]
        self.assertEqual([False, True], is_known)


class CpuCountersTest(GuestsCase):
    def test_the_count_of_a_node_is_the_sum_of_its_cpus(self):
        counters = counted.CpuCounters(
            selecting(LOCAL, REMOTE, CYCLES), self.root, counted.DRAM_ROLES
        )
        self.addCleanup(counters.close)
        host = topology.read()
        self.assertEqual({}, counters.sample(host, 0))
        self.child.run()
        readings = counters.sample(host, SECOND)
        self.assertLessEqual(2000, sum(rates.local_per_sec for rates in readings.values()))
        self.assertEqual({node.id for node in host.nodes if node.cpus}, readings.keys())
        self.assertIsNone(readings[host.nodes[0].id].cycles_per_sec)
        # When a CPU goes offline, its counts are lost.
        fewer = host._replace(
            nodes=tuple(
                node._replace(online_cpus=node.online_cpus - {max(node.online_cpus)})
                for node in host.nodes
            )
        )
        self.assertEqual({}, counters.sample(fewer, SECOND))

    def test_a_mediated_vpmu_makes_counting_by_cpu_unavailable(self):
        self.mediate()
        counters = counted.CpuCounters(selecting(LOCAL, REMOTE), self.root, counted.ROLES)
        with self.assertRaises(exceptions.SourceUnavailable):
            counters.sample(topology.read(), 0)


class OwnersTest(unittest.TestCase):
    """Results for counts that are set by a test."""

    def deltas(self, before, after, idle_is_zero=False):
        """Return {role: what it counted}; before and after are {CPU: counts of its events}."""
        opened = [counters._Open((None, ()), (), (LOCAL, REMOTE), ()) for _ in before]
        deltas, _ = counters._deltas(opened, before.values(), after.values(), idle_is_zero)
        return deltas

    def test_a_sum_of_counts_is_scaled_by_the_time_of_all(self):
        deltas = self.deltas(
            {0: [CounterReading(0, 0, 0)] * 2, 1: [CounterReading(5, 10, 10)] * 2},
            {
                0: [CounterReading(8, 20, 10), CounterReading(1, 20, 20)],
                1: [CounterReading(10, 30, 30), CounterReading(5, 30, 30)],
            },
        )
        self.assertEqual(
            {'local_dram': CounterDelta(13 * 4 / 3, 0.75), 'remote_dram': CounterDelta(1.0, 1.0)},
            deltas,
        )

    def test_a_count_backwards_not_run_or_absent_is_unknown(self):
        base = {0: [CounterReading(7, 10, 10), CounterReading(0, 10, 10)]}
        for bad in (
            CounterReading(6, 20, 20),
            CounterReading(9, 20, 10),
            CounterReading(9, 9, 9),
            None,
        ):
            with self.subTest(bad=bad):
                deltas = self.deltas(base, {0: [bad, CounterReading(4, 20, 20)]})
                self.assertEqual(
                    {'local_dram': None, 'remote_dram': CounterDelta(4.0, 1.0)}, deltas
                )
                evidence = counted.owner_rates((LOCAL, REMOTE), deltas, SECOND)
                self.assertEqual((None, None, 1.0), (*evidence[2:4], evidence.counted_ratio))

    def test_threads_that_got_no_counter_are_estimated_from_the_others_of_their_guest(self):
        before = {thread: [CounterReading(0, 0, 0)] * 2 for thread in (0, 1)}
        starved = CounterReading(0, 10, 0)
        for busy, expected in (
            (CounterReading(90, 90, 90), CounterDelta(100.0, 0.9)),
            (starved, None),
        ):
            after = {thread: [count] * 2 for thread, count in enumerate((busy, starved))}
            self.assertEqual(
                {'local_dram': expected, 'remote_dram': expected},
                self.deltas(before, after, idle_is_zero=True),
            )


class UncoreTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = sysfs.build_sysfs(directory.name, sysfs.equal_nodes(2))
        self.packages({cpu: cpu // 4 for cpu in range(8)})
        self.host = topology.read(self.root)

    def packages(self, by_cpu):
        for cpu, package in by_cpu.items():
            sysfs.write(
                self.root,
                'sys/devices/system/cpu/cpu%d/topology/physical_package_id' % cpu,
                '%d\n' % package,
            )

    def plan(self, *chosen):
        wanted, shared = uncore.Uncore(selecting(*chosen), root=self.root)._choose_targets(
            self.host, chosen
        )
        return {
            node: sorted((key, [one.role for one in own]) for key, (_, own) in keys.items())
            for (node, _), keys in wanted.items()
        }, shared

    def test_each_package_is_counted_once_for_its_node(self):
        read = software_event(rates.MEM_READ, 0, cpus=(0, 4))._replace(pmu='imc_0')
        planned, shared = self.plan(read)
        self.assertEqual(
            {0: [(('imc_0', 0), ['mem_read'])], 1: [(('imc_0', 4), ['mem_read'])]}, planned
        )
        self.assertEqual(set(), shared)

    def test_uncore_events_of_nodes_in_one_package_are_not_told_apart(self):
        self.packages(dict.fromkeys(range(8), 0))
        planned, shared = self.plan(software_event(rates.MEM_READ, 0, cpus=(0,)))
        self.assertEqual(({0: [], 1: []}, {'mem_read'}), (planned, shared))

    def test_without_uncore_events_the_source_is_unavailable(self):
        with self.assertRaises(exceptions.SourceUnavailable):
            uncore.Uncore(selecting(LOCAL), root=self.root).sample(self.host)

    def use(self, **deltas):
        counted = {
            role: value if value is None else CounterDelta(value, 1.0)
            for role, value in deltas.items()
        }
        return uncore.Uncore(selecting())._use(0, counted, 2 * SECOND)

    def test_uncore_use_follows_from_the_counts_there_are(self):
        self.assertEqual(
            NodeSample(
                0,
                bandwidth_bytes_per_sec=1200.0,
                bandwidth_max_bytes_per_sec=50.0,
                io_miss_ratio=0.25,
            ),
            self.use(mem_read=1600.0, mem_write=800.0, mem_max=100.0, io_hit=3.0, io_miss=1.0),
        )
        self.assertEqual(NodeSample(0, bandwidth_bytes_per_sec=200.0), self.use(mem_traffic=400.0))
        self.assertEqual(NodeSample(0), self.use())
        self.assertEqual(NodeSample(0), self.use(mem_read=1600.0, mem_write=None))
        self.assertIsNone(self.use(io_hit=0.0, io_miss=0.0).io_miss_ratio)

    def test_a_pmu_that_names_its_node_is_counted_for_that_node(self):
        read = software_event(rates.MEM_READ, 0, cpus=(0,), node=1)
        self.assertEqual([0, 1], [len(own) for own in self.plan(read)[0].values()])


class CrowdedTest(GuestsCase):
    """Hardware with too few counters for threads and CPUs."""

    def test_cpus_give_way_to_guests_that_ran_uncounted_for_an_hour(self):
        source = self.source(LOCAL, REMOTE)
        tick = self.tick(1, self.child.pid)._replace(before_ns=SECOND)
        source.sample(tick)
        [uuid] = [running.guest.uuid for running in tick.guests]
        starved = {
            uuid: {
                'local_dram': None,
                'remote_dram': None,
                'stalled_cycles': CounterDelta(1.0, 1.0),
            }
        }
        counts = {uuid: dict.fromkeys(starved[uuid], CounterDelta(1.0, 1.0))}
        for deltas, ticks, is_crowded in (
            (starved, 2, False),
            (starved, 1, True),
            (counts, 719, True),
            (counts, 1, False),
            (starved, 3, True),
        ):
            answer = mock.patch.object(counters.OwnerCounters, 'sample', return_value=(deltas, ()))
            with answer:
                for _ in range(ticks):
                    source.sample(tick)
            self.assertEqual(is_crowded, source.crowded_out)
        source.close()  # as the ladder does with a source that failed
        self.assertFalse(source.crowded_out)
