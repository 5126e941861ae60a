# SPDX-License-Identifier: Apache-2.0
"""A host is known by its metrics and the guests that came since, or else by Nova's counts."""

import datetime
import types
import unittest

from hypothesis import given, strategies

from nova_numa_pmc.compute import metrics_decoder, metrics_encoder
from nova_numa_pmc.scheduler import hosts as subject, losses, request as requests
from tests.fixtures.host_views import hosts as views
from tests.fixtures.metrics import build_publication, metric_list
from tests.fixtures.nova_stand_ins import host_state, host_state_of, request_spec

NOW_S = 1700000000


def ask(host_state, request=None, realtime_s=NOW_S):
    return subject.read(host_state, requests.read(request or request_spec()), realtime_s)


class KnownTest(unittest.TestCase):
    def test_old_metrics_are_unknown_and_so_are_those_of_tomorrow(self):
        for realtime_s, known in (
            (NOW_S + 299, True),
            (NOW_S + 301, False),
            (NOW_S - 301, False),
            (float('nan'), False),
        ):
            why_unknown = ask(host_state(0.5, 0.5), realtime_s=realtime_s).why_unknown
            self.assertEqual(known, why_unknown is None)

    def test_a_host_without_metrics_is_unknown(self):
        blank = host_state(0.5, 0.5)
        for blank.metrics in (None, [], [{'name': 'cpu.percent', 'value': 1}]):
            self.assertIn('no metrics', ask(blank).why_unknown)

    def test_capacities_above_what_the_hardware_can_have_are_unknown(self):
        # 2 x 64 GiB, 2 x 16 CPUs, demand of 5 + 2.5 cores
        published = metric_list(build_publication(0.5, 0.25))
        for fields, why in (
            ({'vcpus_total': 4}, None),
            ({'vcpus_total': 3}, 'implausible: more CPUs'),
            ({'total_usable_ram_mb': 60000}, 'implausible: more memory'),
            # The agent has multiplied the capacity by the RAM allocation ratio.
            ({'total_usable_ram_mb': 60000, 'ram_allocation_ratio': 1.5}, None),
            ({'total_usable_ram_mb': 20000, 'ram_allocation_ratio': 4.0}, None),
            ({'total_usable_ram_mb': 15000, 'ram_allocation_ratio': 4.0}, 'more memory'),
            ({'total_usable_ram_mb': 70000, 'ram_allocation_ratio': 0.5}, None),
            ({'total_usable_ram_mb': 60000, 'ram_allocation_ratio': 0.0}, 'more memory'),
            ({'vcpus_total': 40, 'total_usable_ram_mb': 131072}, None),
            ({'vcpus_total': 0, 'total_usable_ram_mb': 0}, None),
        ):
            with self.subTest(fields):
                estimate = ask(host_state_of(published, **fields))
                self.assertEqual(why is None, estimate.why_unknown is None)
                self.assertIn(why or '', estimate.why_unknown or '')

    def test_more_cores_than_a_host_has_cpus_are_unknown(self):
        for cores, known in ((32.0, True), (33.0, False), (1e12, False)):
            published = metric_list(build_publication(0.0, 0.0, cores=cores))
            estimate = ask(host_state_of(published, vcpus_total=8))
            self.assertEqual(known, estimate.why_unknown is None, cores)

    def test_metrics_that_have_changed_are_decoded_again(self):
        one = host_state(0.5, 0.25)
        self.assertIs(ask(one).metrics, ask(one).metrics)
        one.metrics = host_state(0.1, 0.1).metrics
        self.assertEqual(2.0, ask(one).figures.demand_cores)

    def test_before_a_resize_a_guest_is_as_large_as_it_was(self):
        here = host_state(0.5, 0.5, instances=['u'])
        self.assertEqual((2, 2048), ask(here)[4:6])
        flavor = types.SimpleNamespace(vcpus=1, memory_mb=1024, extra_specs={})
        here.instances['u'] = types.SimpleNamespace(flavor=flavor)
        self.assertEqual((1, 1024), ask(here)[4:6])

    def test_a_guest_that_is_not_in_the_hosts_figures_is_not_subtracted(self):
        flavor = types.SimpleNamespace(vcpus=2, memory_mb=2048, extra_specs={})
        dedicated = types.SimpleNamespace(
            vcpus=2, memory_mb=2048, extra_specs={'hw:cpu_policy': 'dedicated'}
        )
        for name, instance, stats, is_in_figures in (
            ('running', {'flavor': flavor, 'vm_state': 'active'}, {'num_vm_stopped': '1'}, True),
            ('stopped', {'flavor': flavor, 'vm_state': 'stopped'}, {'num_vm_stopped': '1'}, False),
            # The message about it is older than the last audit, which found no stopped guest.
            ('started', {'flavor': flavor, 'vm_state': 'stopped'}, {'num_vm_stopped': '0'}, True),
            ('dedicated', {'flavor': dedicated, 'vm_state': 'active'}, {}, False),
        ):
            with self.subTest(name):
                here = host_state(0.5, 0.5, instances=['u'])
                here.instances['u'], here.stats = types.SimpleNamespace(**instance), stats
                self.assertEqual(not is_in_figures, ask(here)[4:6] == (0, 0))

    def test_only_the_shared_vcpus_of_a_mixed_guest_are_subtracted(self):
        flavor = types.SimpleNamespace(
            vcpus=8, memory_mb=2048, extra_specs={'hw:cpu_policy': 'mixed'}
        )
        plain = types.SimpleNamespace(vcpus=2, memory_mb=0, extra_specs={'hw:numa_nodes': '1'})
        cell = types.SimpleNamespace(cpuset={0, 1}, pcpuset=set(range(2, 8)))
        topology = types.SimpleNamespace(cells=[cell])
        sizes = []
        for present, cells in ((flavor, topology), (plain, None)):
            here = host_state(0.5, 0.5, instances=['u'])
            here.instances['u'] = types.SimpleNamespace(flavor=present, numa_topology=cells)
            sizes.append(ask(here)[4:6])
        # The memory of guests that Nova pins may be huge pages, which are not promised.
        self.assertEqual([(2, 0)] * 2, sizes)

    @given(views(measured=True))
    def test_sums_are_those_of_the_view(self, view):
        decoded = metrics_decoder.decode(metric_list(build_publication(0.5)._replace(view=view)))
        found, expected = decoded.figures, metrics_decoder.figures_of(decoded.view)
        self.assertEqual(found.nodes, expected.nodes)
        for one, other in zip(found[1:6], expected[1:6]):
            self.assertEqual(one is None, other is None)
            self.assertAlmostEqual(one or 0.0, other or 0.0, delta=1e-6 * (other or 1.0))
        self.assertEqual([*found.rooms], [*expected.rooms])


def unknown_host(vcpus_used=0, used_mb=0, vcpus=64, memory_mb=262144, pinned=(), cpuset=()):
    cells = [types.SimpleNamespace(pinned_cpus=set(cpus), cpuset=set(cpuset)) for cpus in pinned]
    return host_state_of(
        None,
        vcpus_total=vcpus,
        vcpus_used=vcpus_used,
        total_usable_ram_mb=memory_mb,
        free_ram_mb=memory_mb - used_mb,
        numa_topology=types.SimpleNamespace(cells=cells) if cells else None,
    )


class UnknownTest(unittest.TestCase):
    def loss(self, state, vcpus=4, memory_mb=8192):
        guest = requests.Guest(vcpus, memory_mb)
        return losses.compare([ask(state)], guest)[0].ratio

    def test_a_host_costs_more_the_more_is_promised_there(self):
        ratios = [self.loss(unknown_host(vcpus)) for vcpus in (0, 40, 80, 160, 2000)]
        self.assertEqual(sorted(ratios), ratios)
        self.assertLess(ratios[0], 0.001)
        self.assertGreater(ratios[-1], 0.99)

    def test_memory_may_be_promised_as_often_as_nova_lets_it(self):
        state = unknown_host(used_mb=300_000)
        self.assertGreater(self.loss(state), 0.05)
        state.ram_allocation_ratio = 2.0
        self.assertLess(self.loss(state), 0.001)

    def test_three_tenths_of_a_core_are_wanted_for_each_vcpu_that_shares_cpus(self):
        dedicated = range(32, 56), range(96, 120)
        for state, demand_cores, cores in (
            (unknown_host(40), 12.0, 40.0),
            # Nova counts the shared CPUs in vcpus, but the vCPUs of all guests in vcpus_used.
            (unknown_host(40 + 48, vcpus=32, pinned=dedicated), 12.0, 20.0),
            # Without cpu_dedicated_set, as by default, vcpus counts them.
            (unknown_host(16 + 56, pinned=(range(28), range(32, 60)), cpuset=range(64)), 4.8, 5.0),
        ):
            figures = ask(state).figures
            self.assertAlmostEqual(demand_cores, figures.demand_cores)
            self.assertEqual(cores, figures.cores)

    def test_a_guest_that_fits_on_no_half_loses_to_distance(self):
        state = unknown_host(used_mb=131072)
        self.assertGreater(self.loss(state, memory_mb=100_000), 0.05)
        self.assertLess(self.loss(state, memory_mb=60_000), 0.001)

    def test_missing_or_odd_counts_are_not_an_error(self):
        for state in (
            unknown_host(vcpus=0, memory_mb=0),
            unknown_host(8, vcpus=0, memory_mb=0),
            unknown_host(-3, -1),
            unknown_host(8, 2**40, 1, 1),
        ):
            self.assertTrue(0.0 <= self.loss(state) <= 1.0)


def pages(size_kb, used, total):
    """Return the pages of one size, as Nova counts them in a cell."""
    return types.SimpleNamespace(size_kb=size_kb, used=used, total=total)


class NovaHost:
    """A host as Nova's audits, claims and messages present it to the scheduler.

    :param is_told: instances are known from nova-compute's messages, which are sent when an
        instance is built; otherwise they are read from the database
    """

    #: What Nova counts as used by the host itself.
    RESERVED_CPUS, RESERVED_MB = 2, 65536

    def __init__(self, is_told):
        self.is_told, self.size, self.pins, self.huge_mb = is_told, {}, {}, {}
        self.building, self.counted, self.number = set(), set(), 0
        self.audit()

    def arrive(self, vcpus=4, pinned=False, huge=False):
        self.number += 1
        uuid = f'{self.number:04x}-0000'
        self.size[uuid], self.pins[uuid] = vcpus, vcpus if pinned else 0
        self.huge_mb[uuid] = 1024 * vcpus if huge else 0
        self.building.add(uuid)
        return uuid

    def leave(self, uuid):
        del self.size[uuid], self.pins[uuid], self.huge_mb[uuid]
        self.building.discard(uuid)

    def audit(self):
        self.counted = set(self.size) - self.building
        self.at_audit = sum(self.size[uuid] for uuid in self.counted)
        self.pinned_at_audit = sum(self.pins[uuid] for uuid in self.counted)
        self.huge_mb_at_audit = sum(self.huge_mb[uuid] for uuid in self.counted)

    def host_state(self, saved_s=NOW_S + 30, is_older=False):
        published = metric_list(
            build_publication(0.1, 0.1, cores=400.0),
            self.RESERVED_CPUS + self.at_audit,
            self.RESERVED_MB + 1024 * self.at_audit,
            metrics_encoder.NovaCounts(
                tuple(sorted(self.counted)),
                self.pinned_at_audit,
                self.RESERVED_CPUS,
                self.RESERVED_MB,
                None if is_older else self.huge_mb_at_audit,
            ),
            NOW_S,
        )
        used = sum(self.size.values())
        cell = types.SimpleNamespace(
            pinned_cpus=set(range(sum(self.pins.values()))),
            mempages=[
                pages(4, used * 256, 1 << 28),
                pages(2048, sum(self.huge_mb.values()) // 2, 1 << 19),
                pages(1 << 20, 0, 0),
            ],
        )
        return host_state_of(
            published,
            vcpus_used=self.RESERVED_CPUS + used,
            total_usable_ram_mb=1 << 20,
            free_ram_mb=(1 << 20) - self.RESERVED_MB - 1024 * used,
            updated=datetime.datetime.fromtimestamp(saved_s, datetime.timezone.utc),
            instances=dict.fromkeys(set(self.size) - (self.building if self.is_told else set())),
            stats={
                'num_instances': str(len(self.size)),
                'num_vm_building': str(len(self.building)),
            },
            num_instances=len(self.size),
            numa_topology=types.SimpleNamespace(cells=[cell]),
        )

    @property
    def uncounted(self):
        return sum(self.size[uuid] for uuid in set(self.size) - self.counted)


#: What happens, and the index of the instance to which it happens.
EVENTS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(('arrive', 'built', 'leave', 'audit')), strategies.integers(0, 99)
    ),
    max_size=40,
)


class ArrivalTest(unittest.TestCase):
    """Guests that have arrived since are charged, regardless of those that have left."""

    def after(self, is_told, events, sizes=(4,)):
        nova_host = NovaHost(is_told)
        for event, number in events:
            there = sorted(nova_host.building if event == 'built' else nova_host.size)
            if event == 'arrive':
                nova_host.arrive(sizes[number % len(sizes)])
            elif event == 'audit':
                nova_host.audit()
            elif there and event == 'built':
                nova_host.building.discard(there[number % len(there)])
            elif there:
                nova_host.leave(there[number % len(there)])
        return nova_host

    @given(strategies.booleans(), EVENTS)
    def test_the_charge_is_what_is_there_and_was_not_counted(self, is_told, events):
        nova_host = self.after(is_told, events)
        self.assertAlmostEqual(nova_host.uncounted, ask(nova_host.host_state()).arrived_vcpus)

    @given(strategies.booleans(), EVENTS)
    def test_the_memory_of_guests_that_left_is_freed_whatever_has_arrived(self, is_told, events):
        nova_host = self.after(is_told, events)
        departed = len(nova_host.counted - set(nova_host.size))
        self.assertAlmostEqual(4096 * departed, ask(nova_host.host_state()).freed_mib)

    @given(strategies.booleans(), EVENTS)
    def test_different_sizes_are_charged_no_less_than_by_novas_counts(self, is_told, events):
        nova_host = self.after(is_told, events, (1, 2, 8))
        charged = ask(nova_host.host_state()).arrived_vcpus
        self.assertGreaterEqual(charged + 1e-9, sum(nova_host.size.values()) - nova_host.at_audit)
        if nova_host.counted <= set(nova_host.size):
            self.assertAlmostEqual(nova_host.uncounted, charged)

    def filled(self, is_told=False, guests=4, sizes=(4,)):
        nova_host = NovaHost(is_told)
        first = [nova_host.arrive(size) for size in sizes for _ in range(guests)]
        nova_host.building.clear()
        nova_host.audit()
        return nova_host, first

    def test_an_arrival_and_a_departure_of_equal_size_do_not_cancel(self):
        for is_told in (True, False):
            nova_host, first = self.filled(is_told)
            nova_host.arrive()
            nova_host.leave(first[0])
            calm, charged = ask(self.filled(is_told)[0].host_state()), ask(nova_host.host_state())
            self.assertEqual((0, 4), (calm.arrived_vcpus, charged.arrived_vcpus))

    def test_what_the_host_keeps_for_itself_does_not_arrive_when_guests_leave(self):
        nova_host, first = self.filled()
        for uuid in first:
            nova_host.leave(uuid)
        nova_host.arrive()
        host_state = nova_host.host_state()
        decoded = metrics_decoder.decode(host_state.metrics)
        self.assertEqual((4, 4096), subject._arrived_and_freed(decoded, host_state)[:2])

    def test_guests_smaller_than_the_mean_do_not_look_like_arrivals_when_they_leave(self):
        for is_told in (True, False):
            nova_host, first = self.filled(is_told, sizes=(16, 1))
            calm = ask(nova_host.host_state())
            for uuid in first[4:]:
                nova_host.leave(uuid)
            estimate = ask(nova_host.host_state())
            self.assertEqual((0, calm.figures), (estimate.arrived_vcpus, estimate.figures))

    def test_smaller_guests_that_leave_hide_no_arrival(self):
        for is_building, is_listed in ((True, False), (False, True), (False, False)):
            nova_host, first = self.filled(is_told=True, sizes=(16, 4))
            for uuid in first[6:]:
                nova_host.leave(uuid)
            newcomer = nova_host.arrive(2)
            if not is_building:
                nova_host.building.clear()
            host_state = nova_host.host_state()
            if not is_listed:
                host_state.instances.pop(newcomer, None)
            self.assertGreaterEqual(ask(host_state).arrived_vcpus, 2)

    def test_smaller_guests_that_leave_hide_nothing_that_nova_does_not_list(self):
        # One more of the same request, and two that are on their way from another host.
        for vcpus, instances in ((2, 1), (8, 0)):
            nova_host, first = self.filled(sizes=(16, 4))
            for uuid in first[6:]:
                nova_host.leave(uuid)
            host_state = nova_host.host_state()
            host_state.vcpus_used += vcpus
            host_state.num_instances += instances
            self.assertGreaterEqual(ask(host_state).arrived_vcpus, vcpus)

    def test_what_is_saved_with_the_metrics_is_of_their_time(self):
        nova_host, first = self.filled()
        nova_host.arrive()
        nova_host.leave(first[0])
        self.assertEqual(0, ask(nova_host.host_state(saved_s=NOW_S + 1)).arrived_vcpus)

    def test_a_list_that_lacks_instances_charges_none(self):
        nova_host, _ = self.filled()
        host_state = nova_host.host_state()
        for listed_there in ({}, dict.fromkeys(list(host_state.instances)[:2])):
            host_state.instances = listed_there
            self.assertEqual(0, ask(host_state).arrived_vcpus)

    def test_what_the_same_request_has_put_there_hides_no_departure(self):
        nova_host, first = self.filled()
        nova_host.leave(first[0])
        host_state = nova_host.host_state()
        # Like Nova's consume_from_request: neither in stats nor in instances.
        host_state.vcpus_used += 4
        host_state.num_instances = len(nova_host.size) + 1
        self.assertEqual(4, ask(host_state).arrived_vcpus)

    def test_an_older_monitor_is_charged_by_the_difference(self):
        nova_host, first = self.filled()
        nova_host.arrive()
        nova_host.leave(first[0])
        older = nova_host.host_state()
        older.metrics = metric_list(build_publication(0.1, 0.1), NovaHost.RESERVED_CPUS + 12)
        self.assertEqual(4, ask(older).arrived_vcpus)

    def test_dedicated_newcomers_take_no_shared_core(self):
        nova_host, first = self.filled()
        nova_host.arrive(16, pinned=True)
        self.assertEqual(0, ask(nova_host.host_state()).arrived_vcpus)
        nova_host.arrive(2)
        self.assertEqual(2, ask(nova_host.host_state()).arrived_vcpus)
        nova_host.building.clear()
        nova_host.audit()
        self.assertEqual(0, ask(nova_host.host_state()).arrived_vcpus)
        nova_host.leave(first[0])
        self.assertEqual(0, ask(nova_host.host_state()).arrived_vcpus)

    def test_newcomers_in_huge_pages_take_no_normal_memory(self):
        nova_host, _ = self.filled()
        nova_host.arrive(64, pinned=True, huge=True)
        decoded = metrics_decoder.decode(nova_host.host_state().metrics)
        for vcpus, memory_mb in ((0, 0), (2, 2048)):
            host_state = nova_host.host_state()
            amounts = subject._arrived_and_freed(decoded, host_state)
            self.assertEqual((vcpus, memory_mb, 0), amounts)
            nova_host.arrive(2)
        nova_host.building.clear()
        nova_host.audit()
        self.assertEqual(0, ask(nova_host.host_state()).arrived_vcpus)

    def test_guests_in_huge_pages_that_leave_free_no_normal_memory(self):
        nova_host, _ = self.filled()
        huge = nova_host.arrive(64, pinned=True, huge=True)
        nova_host.building.clear()
        nova_host.audit()
        nova_host.leave(huge)
        host_state = nova_host.host_state()
        decoded = metrics_decoder.decode(host_state.metrics)
        self.assertEqual((-64, 0, 0), subject._arrived_and_freed(decoded, host_state))
        self.assertEqual(0, ask(host_state).freed_mib)
        nova_host.arrive()
        _, arrived_mb, _ = subject._arrived_and_freed(decoded, nova_host.host_state())
        # A fifth of the counted guests has left; the others have 16 GiB of normal memory.
        self.assertAlmostEqual(4096 + 16384 / 5, arrived_mb)

    def test_an_older_monitor_is_charged_for_huge_pages_as_for_normal_memory(self):
        nova_host, _ = self.filled()
        nova_host.arrive(64, pinned=True, huge=True)
        host_state = nova_host.host_state(is_older=True)
        decoded = metrics_decoder.decode(host_state.metrics)
        self.assertEqual((0, 65536, 0), subject._arrived_and_freed(decoded, host_state))
