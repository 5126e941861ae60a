# SPDX-License-Identifier: Apache-2.0
"""A host is estimated from its metrics and the guests that came since, and compared by that."""

import copy
import datetime
import os
import random
import types
import unittest

from hypothesis import given, strategies

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_decoder, metrics_encoder
from nova_numa_pmc.scheduler import (
    arrivals,
    comparison,
    host_estimate as subject,
    penalty,
    refusals,
    request as requests,
)
from tests.fixtures.expected_losses import cpu_loss
from tests.fixtures.metrics import build_publication, metric_list, mutate
from tests.fixtures.nova_stand_ins import host_state, host_state_of, request_spec

NOW_S = 1700000000
RULES = subject.EstimateOptions()
#: The most that the guests' bandwidth of 0.01 adds to a loss, whatever traffic hosts report.
BANDWIDTH_LOSS = 0.0012
#: `NUMA_PMC_FUZZ=100000` for the long run.
MUTATIONS = int(os.environ.get('NUMA_PMC_FUZZ', '2000'))


def ask(host_state, request=None, options=RULES, realtime_s=NOW_S):
    return subject.estimate(
        host_state, requests.read(request or request_spec()), options, realtime_s
    )


class EstimateTest(unittest.TestCase):
    def test_the_estimate_is_of_the_node_where_the_guest_would_go(self):
        estimate = ask(host_state(0.5, 0.25))
        self.assertEqual(('one_node', (1,)), (estimate.outcome.code, estimate.outcome.positions))
        self.assertAlmostEqual(0.35, estimate.outcome.pressures[0])

    def test_old_metrics_are_unknown_and_so_are_those_of_tomorrow(self):
        for realtime_s, known in ((NOW_S + 299, True), (NOW_S + 301, False), (NOW_S - 301, False)):
            self.assertEqual(
                known, ask(host_state(0.5, 0.5), realtime_s=realtime_s).outcome is not None
            )

    def test_a_host_without_metrics_is_unknown(self):
        blank = host_state(0.5, 0.5)
        for blank.metrics in (None, [], [{'name': 'cpu.percent', 'value': 1}]):
            self.assertIsNone(ask(blank).outcome)

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
                self.assertEqual(why is None, estimate.outcome is not None)
                self.assertIn(why or '', estimate.why_unknown or '')

    def test_more_cores_than_a_host_has_cpus_are_unknown(self):
        for cores, known in ((32.0, True), (33.0, False), (1e12, False)):
            published = metric_list(build_publication(0.0, 0.0, cores=cores))
            estimate = ask(host_state_of(published, vcpus_total=8))
            self.assertEqual(known, estimate.outcome is not None, cores)

    def test_guests_that_came_since_are_charged_where_they_went(self):
        since = ask(host_state(0.5, 0.25, vcpus=20, memory_mb=20480))
        # Both went to node 1, 0.25 + 0.1 + 0.1; this one would too, which makes 0.55.
        self.assertEqual(4, since.arrived_vcpus)
        self.assertAlmostEqual(0.55, since.outcome.pressures[0])
        self.assertAlmostEqual(0.25 + 0.1, ask(host_state(0.5, 0.25)).outcome.pressures[0])

    def test_charging_can_be_turned_off(self):
        estimate = ask(
            host_state(0.5, 0.25, vcpus=20),
            options=subject.EstimateOptions(charge_new_guests=False),
        )
        self.assertAlmostEqual(0.35, estimate.outcome.pressures[0])

    def test_guests_that_left_are_not_taken_off(self):
        self.assertAlmostEqual(0.35, ask(host_state(0.5, 0.25, vcpus=8)).outcome.pressures[0])

    def test_memory_that_came_since_is_promised(self):
        # 56 GiB are left on each node; 40 GiB more on one of them.
        estimate = ask(
            host_state(0.25, 0.25, vcpus=18, memory_mb=16384 + 40960),
            request_spec(memory_mb=50000),
        )
        self.assertEqual('one_node', estimate.outcome.code)
        estimate = ask(
            host_state(0.25, 0.25, vcpus=20, memory_mb=16384 + 81920),
            request_spec(memory_mb=50000),
        )
        self.assertEqual('cpus_only', estimate.outcome.code)

    def test_a_guest_that_is_there_already_does_not_count_twice(self):
        here, elsewhere = host_state(0.5, 0.5, instances=['u']), host_state(0.5, 0.5)
        self.assertAlmostEqual(0.6, ask(elsewhere).outcome.pressures[0])
        # Half of its core is subtracted from each node before one core is added to one of them.
        self.assertAlmostEqual(0.55, ask(here).outcome.pressures[0])

    def test_before_a_resize_it_is_as_large_as_it_was(self):
        here = host_state(0.5, 0.5, instances=['u'])
        flavor = types.SimpleNamespace(vcpus=1, memory_mb=1024, extra_specs={})
        here.instances['u'] = types.SimpleNamespace(flavor=flavor)
        # A quarter of a core is subtracted from each node before a whole one is added to one of
        # them.
        self.assertAlmostEqual(0.575, ask(here).outcome.pressures[0])
        flavor.vcpus = 6
        self.assertAlmostEqual(0.45, ask(here).outcome.pressures[0])

    def test_a_guest_that_is_not_in_the_hosts_figures_is_not_subtracted(self):
        elsewhere = ask(host_state(0.5, 0.5)).outcome
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
                self.assertEqual(not is_in_figures, elsewhere == ask(here).outcome)

    def test_only_the_shared_vcpus_of_a_mixed_guest_are_subtracted(self):
        flavor = types.SimpleNamespace(
            vcpus=8, memory_mb=2048, extra_specs={'hw:cpu_policy': 'mixed'}
        )
        plain = types.SimpleNamespace(vcpus=2, memory_mb=0, extra_specs={'hw:numa_nodes': '1'})
        cell = types.SimpleNamespace(cpuset={0, 1}, pcpuset=set(range(2, 8)))
        topology = types.SimpleNamespace(cells=[cell])
        outcomes = []
        for present, cells in ((flavor, topology), (plain, None)):
            here = host_state(0.5, 0.5, instances=['u'])
            here.instances['u'] = types.SimpleNamespace(flavor=present, numa_topology=cells)
            outcomes.append(ask(here).outcome)
        self.assertEqual(*outcomes)

    def test_memory_of_a_guest_that_nova_pins_is_not_subtracted(self):
        # Its huge pages are not promised, so that what is promised is that of other guests.
        here = host_state(0.5, 0.5, instances=['u'])
        flavor = types.SimpleNamespace(vcpus=2, memory_mb=61440, extra_specs={})
        here.instances['u'] = types.SimpleNamespace(flavor=flavor, numa_topology=None)
        spec = request_spec(memory_mb=60000)
        self.assertEqual('one_node', ask(here, spec).outcome.code)
        flavor.extra_specs['hw:mem_page_size'] = 'large'
        self.assertNotEqual('one_node', ask(here, spec).outcome.code)

    def test_a_repeated_request_is_not_estimated_again(self):
        one = host_state(0.5, 0.25)
        self.assertIs(ask(one), ask(one))

    def test_a_host_that_changed_is_estimated_again(self):
        one = host_state(0.5, 0.25)
        before = ask(one).outcome.pressures[0]
        one.vcpus_used += 2
        self.assertLess(before, ask(one).outcome.pressures[0])
        one.metrics = host_state(0.1, 0.1).metrics
        self.assertAlmostEqual(0.2, ask(one).outcome.pressures[0])

    def test_a_host_whose_memory_was_freed_is_estimated_again(self):
        one, options = host_state(0.5, 0.25), subject.EstimateOptions(charge_new_guests=False)
        self.assertEqual(0, ask(one, options=options).freed_mib)
        one.free_ram_mb += 4096
        self.assertEqual(4096, ask(one, options=options).freed_mib)

    def test_old_metrics_are_not_used_if_stale_after_is_nan(self):
        options = subject.EstimateOptions(stale_after=float('nan'))
        estimate = ask(host_state(0.5, 0.25), options=options, realtime_s=NOW_S + 3600)
        self.assertEqual((None, 'metrics are 3600 s old'), estimate[:2])

    def test_words_are_one_line(self):
        for estimate in (
            ask(host_state(0.5, 0.25)),
            ask(host_state(0.5, 0.25, vcpus=40)),
            ask(host_state(0.5, 0.25), realtime_s=0),
        ):
            self.assertNotIn('\n', subject.describe(estimate))
        self.assertEqual(
            'node 1: pressure 0.35 there, 0.50 elsewhere (on one node)',
            subject.describe(ask(host_state(0.5, 0.25))),
        )


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
            self.assertLess(calm.outcome.pressures, charged.outcome.pressures)

    def test_what_the_host_keeps_for_itself_does_not_arrive_when_guests_leave(self):
        nova_host, first = self.filled()
        for uuid in first:
            nova_host.leave(uuid)
        nova_host.arrive()
        host_state = nova_host.host_state()
        decoded = metrics_decoder.decode(host_state.metrics)
        self.assertEqual((4, 4096), arrivals.arrived_and_freed(decoded, host_state)[:2])

    def test_guests_smaller_than_the_mean_do_not_look_like_arrivals_when_they_leave(self):
        for is_told in (True, False):
            nova_host, first = self.filled(is_told, sizes=(16, 1))
            calm = ask(nova_host.host_state())
            for uuid in first[4:]:
                nova_host.leave(uuid)
            estimate = ask(nova_host.host_state())
            self.assertEqual((0, calm.outcome), (estimate.arrived_vcpus, estimate.outcome))

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
        calm = ask(nova_host.host_state()).outcome
        nova_host.arrive(16, pinned=True)
        self.assertEqual(0, ask(nova_host.host_state()).arrived_vcpus)
        self.assertEqual(calm.pressures, ask(nova_host.host_state()).outcome.pressures)
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
            amounts = arrivals.arrived_and_freed(decoded, host_state)
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
        self.assertEqual((-64, 0, 0), arrivals.arrived_and_freed(decoded, host_state))
        self.assertEqual(0, ask(host_state).freed_mib)
        nova_host.arrive()
        _, arrived_mb, _ = arrivals.arrived_and_freed(decoded, nova_host.host_state())
        # A fifth of the counted guests has left; the others have 16 GiB of normal memory.
        self.assertAlmostEqual(4096 + 16384 / 5, arrived_mb)

    def test_an_older_monitor_is_charged_for_huge_pages_as_for_normal_memory(self):
        nova_host, _ = self.filled()
        nova_host.arrive(64, pinned=True, huge=True)
        host_state = nova_host.host_state(is_older=True)
        decoded = metrics_decoder.decode(host_state.metrics)
        self.assertEqual((0, 65536, 0), arrivals.arrived_and_freed(decoded, host_state))


class PenaltyTest(unittest.TestCase):
    """Hosts as the weigher compares them."""

    def penalties(self, *hosts, request=None, options=RULES, floor=0.0):
        guest_request = requests.read(request or request_spec())
        estimates = [subject.estimate(one, guest_request, options, NOW_S) for one in hosts]
        losses = comparison.compare(hosts, estimates, guest_request.guest)
        options = penalty.PenaltyOptions(floor, 0.0)
        return [round(penalty.penalty(loss, options, 'a'), 6) for loss in losses]

    def test_a_host_counts_as_a_whole_more_than_by_its_best_node(self):
        even, uneven, busy = self.penalties(
            host_state(0.5, 0.5), host_state(0.8, 0.4), host_state(0.6, 0.6)
        )
        # More of the new demand waits at 0.4 next to 0.8 than at 0.5 on both, and less than at
        # 0.6.
        self.assertLess(even, uneven)
        self.assertLess(uneven, busy)
        self.assertAlmostEqual(cpu_loss((8.0, 4.0), 1, 1.0, 10), uneven, delta=BANDWIDTH_LOSS)

    def test_a_node_as_much_wanted_as_it_has_cores_costs_half_and_an_idle_one_nothing(self):
        for vcpus in (1, 2, 8, 16):
            idle, saturated = self.penalties(
                host_state(0.0, 0.0, cores=40.0),
                host_state(1.0, 1.0),
                request=request_spec(vcpus=vcpus),
            )
            self.assertLess(idle, 0.005)
            self.assertGreater(saturated, 0.5)

    def test_penalties_rise_with_pressure_and_without_steps(self):
        penalties = self.penalties(*(host_state(at / 100, at / 100) for at in range(150)))
        rises = [later - earlier for earlier, later in zip(penalties, penalties[1:])]
        self.assertGreaterEqual(min(rises), 0.0)
        # Demand rises by a tenth of a core each time, of ten.
        self.assertLess(max(rises), 0.02)
        self.assertGreater(penalties[-1], 0.5)

    def test_old_promises_do_not_outvote_other_weighers(self):
        nodes = [
            tuple(model.NodeView(at, 10.0, 16, 1 << 36, 0, vcpus, vcpus, 1.0) for at in range(2))
            for vcpus in (0, 40)
        ]
        self.assertEqual(
            1, len(set(self.penalties(*(host_state(nodes=nodes_) for nodes_ in nodes))))
        )

    def test_other_hosts_change_nothing(self):
        rng, mine = random.Random(20), host_state(0.45, 0.8)
        expected, *_ = self.penalties(*[mine] * 5)
        self.assertAlmostEqual(cpu_loss((4.5, 8.0), 0, 1.0, 10), expected, delta=BANDWIDTH_LOSS)
        for _ in range(200):
            others = [
                host_state(rng.choice((0, 0.2, 3, 900)), rng.random(), vcpus=rng.randrange(200))
                for _ in range(rng.randrange(5))
            ]
            # At least as many hosts are sound, which determines the medians.
            self.assertEqual([expected] * 5, self.penalties(*others, *[mine] * 5)[-5:])

    def test_equal_hosts_take_turns_as_they_fill(self):
        hosts = [host_state(0.2, 0.2, cores=20.0) for _ in range(4)]
        for _ in range(20):
            penalties = self.penalties(*hosts)
            hosts[penalties.index(min(penalties))].vcpus_used += 2
        counts = [(one.vcpus_used - 16) // 2 for one in hosts]
        self.assertLessEqual(max(counts) - min(counts), 2)

    def test_without_the_charge_all_go_to_one(self):
        hosts = [host_state(0.2, 0.2, cores=20.0) for _ in range(4)]
        options = subject.EstimateOptions(charge_new_guests=False)
        for _ in range(20):
            penalties = self.penalties(*hosts, options=options)
            hosts[penalties.index(min(penalties))].vcpus_used += 2
        self.assertEqual(56, max(one.vcpus_used for one in hosts))

    def test_dedicated_guests_take_no_shared_core(self):
        for vcpus in (2, 64):
            request = request_spec(vcpus, hw__cpu_policy='dedicated')
            calm, busy = self.penalties(
                host_state(0.5, 0.3), host_state(2.0, 2.0), request=request
            )
            # None of their demand waits, and none waits because of them.
            self.assertEqual(calm, busy)
            self.assertLess(busy, BANDWIDTH_LOSS)

    def test_dedicated_guests_are_weighed_by_the_memory_of_all_nodes(self):
        calm, uneven, busy = (
            host_state(
                nodes=tuple(
                    model.NodeView(at, 10.0, 16, 1 << 36, 0, 4, 8, 5.0, ratio * 1e10, 1e10)
                    for at, ratio in enumerate(ratios)
                )
            )
            for ratios in ((0.3, 0.3), (0.0, 0.8), (0.8, 0.8))
        )
        request = request_spec(hw__cpu_policy='dedicated')
        calm, uneven, busy = self.penalties(calm, uneven, busy, request=request)
        self.assertLess(calm, uneven)
        self.assertLess(uneven, busy)

    def test_demand_that_cannot_be_is_saturation(self):
        for pressure in (1.5, 5.0, 900.0, 2e6, 1e16, 1e30):
            odd = host_state(pressure, pressure, vcpus=32)
            odd.vcpus_total = 32
            busy, absurd = self.penalties(host_state(0.9, 0.9), odd)
            self.assertGreater(absurd, busy)

    def test_a_host_of_many_guests_that_want_nothing_is_weighed_by_its_promises(self):
        for vcpus, stats, expected in (
            (500, {}, False),
            (500, {'num_instances': '100', 'num_vm_stopped': '99'}, True),
            (500, {'num_instances': '100', 'num_vm_stopped': '50'}, False),
            (500, {'num_instances': '100', 'num_vm_active': '100'}, False),
            (16, {}, True),
        ):
            with self.subTest(vcpus=vcpus, stats=stats):
                silent = host_state_of(
                    metric_list(build_publication(0.0, 0.0), vcpus_used=vcpus),
                    vcpus_used=vcpus,
                    vcpus_total=32,
                    stats=stats,
                )
                blank = host_state_of([], vcpus_used=vcpus, vcpus_total=32)
                self.assertEqual(expected, ask(silent).outcome is not None)
                if not expected:
                    self.assertIn('less CPU demand', ask(silent).why_unknown)
                    one, other = self.penalties(silent, blank)
                    self.assertEqual(one, other)
                    self.assertGreater(one, 0.5)
        # A tenth of a percent of a core for each vCPU is little, but possible.
        idle = metric_list(build_publication(0.025, 0.025), vcpus_used=500)
        self.assertIsNotNone(ask(host_state_of(idle, vcpus_used=500, vcpus_total=32)).outcome)


#: States of a host's evidence: what is done with its column and with the demand of its nodes.
FAULTS = (
    'no metrics',
    'stale',
    'from the future',
    'damaged',
    'of another schema',
    'absurd demand',
    'no demand',
    'demand unknown',
    'more cores',
    'more memory',
    'hidden bandwidth',
    'hidden link',
)


class EvidenceTest(unittest.TestCase):
    """No state of its evidence makes a host better than it is, or than if it were unknown."""

    def state(self, fault, cpu, vcpus, rate=1e9):
        """Return a host of equal nodes with these figures, and a fault."""
        demand_cores = {'absurd demand': 1e5 * cpu, 'no demand': 0.0, 'demand unknown': None}.get(
            fault, 10 * cpu
        )
        cores = 1000.0 if fault == 'more cores' else 10.0
        memory = 1 << (46 if fault == 'more memory' else 36)
        bandwidth = None if fault == 'hidden bandwidth' else 10 * cpu * rate
        link = None if fault == 'hidden link' else cpu / 2
        nodes = tuple(
            model.NodeView(
                at, cores, int(1.6 * cores), memory, 0, 4, vcpus // 2,
                demand_cores, bandwidth, bandwidth and 2e10, link,
            )
            for at in range(2)
        )  # fmt: skip
        age_s = {'stale': 301, 'from the future': -301}.get(fault, 0)
        metrics = metric_list(
            build_publication(nodes=nodes, taken_s=NOW_S - age_s), vcpus_used=vcpus
        )
        values = metrics[-2]['numa_membw_values']
        if fault == 'no metrics':
            metrics = []
        elif fault == 'damaged':
            values['pmc.d0'] = -7
        elif fault == 'of another schema':
            values['pmc'] = 207
        return host_state_of(metrics, vcpus_used=vcpus, vcpus_total=32, total_usable_ram_mb=131072)

    @given(
        strategies.sampled_from(FAULTS),
        strategies.integers(1, 20),
        strategies.integers(12, 60),
        strategies.lists(strategies.integers(1, 20), min_size=3, max_size=6),
        strategies.sampled_from((2, 14)),
    )
    def test_no_fault_makes_a_host_better_than_it_is_or_unknown(
        self, fault, tenths, dozens, others, vcpus
    ):
        neighbours = [self.state('', other / 10, 64) for other in others]
        request = requests.read(request_spec(vcpus=vcpus))

        def loss(state):
            hosts = [self.state(state, tenths / 10, 2 * dozens), *neighbours]
            estimates = [subject.estimate(one, request, RULES, NOW_S) for one in hosts]
            return comparison.compare(hosts, estimates, request.guest)[0].loss_ratio

        least = min(loss(''), loss('no metrics'))
        self.assertGreaterEqual(loss(fault), least - 0.001, fault)

    def test_a_saturated_host_does_not_become_attractive_once_its_figures_are_too_old(self):
        request = requests.read(request_spec())
        calm = [self.state('', 0.5, 64)] * 3
        for fault, vcpus, is_avoided in (
            ('stale', 24, True),
            ('from the future', 24, True),
            ('stale', 4, False),  # its guests have left
        ):
            hosts = [self.state(fault, 0.95, vcpus), *calm]
            estimates = [subject.estimate(one, request, RULES, NOW_S) for one in hosts]
            old, current, *_ = comparison.compare(hosts, estimates, request.guest)
            self.assertEqual(is_avoided, old.loss_ratio > current.loss_ratio, (fault, vcpus))


class FuzzTest(unittest.TestCase):
    def test_mutated_metrics_cannot_hurt(self):
        rng, guest_request = random.Random(4), requests.read(request_spec())
        neighbours = [host_state(0.2, 0.3), host_state(0.9, 0.8)] * 5
        options = refusals.FilterOptions(False, 1.0)
        originals = [metric_list(build_publication(*nodes)) for nodes in ((0.5, 0.25), (0.5,))]
        coreless = copy.deepcopy(originals[1])
        coreless[-1]['numa_membw_values'].update({'pmc.c0': 0, '0': 0})
        odd, unknown = host_state(0.5, 0.5), 0
        calm = [cpu_loss((2.0, 3.0), 0, 1.0, 10), cpu_loss((9.0, 8.0), 1, 1.0, 10)] * 5
        for at in range(MUTATIONS):
            odd.metrics = mutate(rng, originals[at % 2]) if at else coreless
            estimates = [
                subject.estimate(one, guest_request, RULES, NOW_S) for one in [odd, *neighbours]
            ]
            losses = comparison.compare([odd, *neighbours], estimates, guest_request.guest)
            exact = penalty.PenaltyOptions(0.0, 0.0)
            penalties = [penalty.penalty(loss, exact, 'a') for loss in losses]
            self.assertTrue(all(0 <= one <= 1 for one in penalties), at)
            for expected, one in zip(calm, penalties[1:]):
                self.assertAlmostEqual(expected, one, delta=BANDWIDTH_LOSS, msg=at)
            if estimates[0].outcome is None:
                unknown += 1
                self.assertEqual('', refusals.why_refused(estimates[0], guest_request, options))
        self.assertGreater(unknown, MUTATIONS / 3)
