# SPDX-License-Identifier: Apache-2.0
"""A host is known by its metrics and the guests that came since, or else by Nova's counts."""

import types
import unittest

from hypothesis import given

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
        (node,) = build_publication(0.5).view.nodes
        for cores, known in ((16.0, True), (17.0, False), (1e12, False)):
            published = metric_list(build_publication(nodes=(node._replace(cores=cores),)))
            estimate = ask(host_state_of(published, vcpus_total=32))
            self.assertEqual(known, estimate.why_unknown is None, cores)

    def test_many_more_cpus_than_nova_counts_are_unknown(self):
        for cores, known in ((32.0, True), (33.0, False), (1e12, False)):
            published = metric_list(build_publication(0.5, 0.5, cores=cores))
            estimate = ask(host_state_of(published, vcpus_total=8))
            self.assertEqual(known, estimate.why_unknown is None, cores)

    def test_a_host_of_few_cores_does_not_gain_some_when_its_agent_stops(self):
        (node,) = build_publication(4.0).view.nodes
        for cores, cpus in ((4.0, 16), (0.0, 0)):
            few = node._replace(cores=cores, cpu_count=cpus, demand_cores=cores)
            here = host_state_of(metric_list(build_publication(nodes=(few,))), vcpus_total=64)
            for realtime_s in (NOW_S, NOW_S + 1000):
                with self.subTest(cores=cores, realtime_s=realtime_s):
                    (found,) = losses.compare(
                        [ask(here, realtime_s=realtime_s)], requests.read(request_spec()).guest
                    )
                    self.assertGreater(found.ratio, 0.4)

    def test_a_host_that_hides_demand_and_vcpus_has_those_that_nova_counts(self):
        node = build_publication(None).view.nodes[0]
        hidden = metric_list(build_publication(nodes=(node._replace(vcpus=0.0),)), 100)
        here = host_state_of(hidden, vcpus_used=100)
        self.assertEqual(100, ask(here).figures.vcpus)
        here.stats = {'num_instances': '4', 'num_vm_stopped': '3'}
        self.assertEqual(25, ask(here).figures.vcpus)

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
    """A host as Nova counts it."""

    def __init__(self):
        self.size, self.pinned, self.huge_mb = {}, set(), {}
        self.audit()

    def arrive(self, vcpus=4, pinned=False, huge=False):
        name = len(self.size)
        self.size[name] = vcpus
        self.huge_mb[name] = 1024 * vcpus if huge else 0
        if pinned:
            self.pinned.add(name)
        return name

    def leave(self, name):
        self.size[name] = self.huge_mb[name] = 0

    def pinned_cpus(self):
        return sum(self.size[name] for name in self.pinned)

    def audit(self):
        self.at_audit = sum(self.size.values())
        self.pinned_at_audit = self.pinned_cpus()
        self.huge_mb_at_audit = sum(self.huge_mb.values())

    def known(self):
        published = metric_list(
            build_publication(0.1, 0.1, cores=400.0),
            self.at_audit,
            1024 * self.at_audit,
            metrics_encoder.NovaCounts(self.pinned_at_audit, huge_page_mb=self.huge_mb_at_audit),
        )
        used = sum(self.size.values())
        cell = types.SimpleNamespace(
            pinned_cpus=set(range(self.pinned_cpus())),
            mempages=[
                pages(4, used * 256, 1 << 28),
                pages(2048, sum(self.huge_mb.values()) // 2, 1 << 19),
                pages(1 << 20, 0, 0),
            ],
        )
        state = host_state_of(
            published,
            vcpus_used=used,
            total_usable_ram_mb=1 << 20,
            free_ram_mb=(1 << 20) - 1024 * used,
            numa_topology=types.SimpleNamespace(cells=[cell]),
        )
        return ask(state)

    def arrived(self):
        """Return what has arrived [vCPUs, MiB], and what has left [MiB]."""
        known = self.known()
        return known.arrived_vcpus, known.arrived_mib, known.freed_mib


class ArrivalTest(unittest.TestCase):
    """Guests that have arrived since the metrics were sent are charged."""

    def setUp(self):
        self.host = NovaHost()
        self.first = [self.host.arrive() for _ in range(4)]
        self.host.audit()

    def test_what_leaves_is_subtracted_from_what_arrives_and_nothing_else_is(self):
        self.assertEqual((0, 0, 0), self.host.arrived())
        self.host.leave(self.first[0])
        self.assertEqual((0, 0, 4096), self.host.arrived())
        self.host.arrive(6)
        self.assertEqual((2, 2048, 0), self.host.arrived())

    def test_dedicated_newcomers_take_no_shared_core(self):
        pinned = self.host.arrive(16, pinned=True)
        self.assertEqual(0, self.host.known().arrived_vcpus)
        self.host.arrive(2)
        self.assertEqual(2, self.host.known().arrived_vcpus)
        self.host.audit()
        self.assertEqual(0, self.host.known().arrived_vcpus)
        self.host.leave(pinned)
        self.host.arrive(3)
        self.assertEqual(3, self.host.known().arrived_vcpus)

    def test_guests_in_huge_pages_take_and_free_no_normal_memory(self):
        huge = self.host.arrive(64, pinned=True, huge=True)
        self.assertEqual((0, 0, 0), self.host.arrived())
        self.host.arrive(2)
        self.assertEqual((2, 2048, 0), self.host.arrived())
        self.host.audit()
        self.host.leave(huge)
        self.assertEqual((0, 0, 0), self.host.arrived())
