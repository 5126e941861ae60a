# SPDX-License-Identifier: Apache-2.0
"""Each guest is placed where pressure is least and it fits, and the explanation says why."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import candidates, placement, ranking, reasons
from tests.fixtures.model_records import (
    GIB,
    MIB,
    PLACEMENT_OPTIONS,
    guest,
    node_view,
    two_level_distances,
    view_of_nodes,
)


def place(view, vcpus=1, memory=GIB, placement_options=PLACEMENT_OPTIONS, **fields):
    return placement.place(view, model.Request(vcpus, memory, **fields), placement_options)


def code(placed):
    return placed.reasons[0].code


class OneNodeTest(unittest.TestCase):
    def test_a_guest_takes_the_node_under_less_pressure(self):
        placed = place(
            view_of_nodes(node_view(0, demand_cores=3.5), node_view(1, demand_cores=1.0))
        )
        self.assertEqual(((1,), (1,)), (placed.cpu_nodes, placed.mem_nodes))

    def test_memory_must_fit_even_under_pressure(self):
        view = view_of_nodes(
            node_view(0, demand_cores=8.0), node_view(1, promised=8 * GIB, demand_cores=0.0)
        )
        self.assertEqual((0,), place(view).cpu_nodes)

    def test_equal_candidates_are_taken_in_turn(self):
        nodes = [node_view(at) for at in range(3)]
        self.assertEqual(
            [(0,), (1,), (2,), (0,)],
            [place(view_of_nodes(*nodes, rotation=rotation)).cpu_nodes for rotation in range(4)],
        )

    def test_unequal_nodes_fill_in_proportion_to_their_cores(self):
        cores, vcpus = (12, 4), [0, 0]
        for _ in range(16):
            view = view_of_nodes(*(node_view(at, cores[at], vcpus=vcpus[at]) for at in (0, 1)))
            vcpus[place(view, memory=0).cpu_nodes[0]] += 1
        self.assertEqual([12, 4], vcpus)


class BandwidthTest(unittest.TestCase):
    def loaded(self, used, maximum=100, **fields):
        """Return the fields of a node with this traffic [GB/s]."""
        return {
            'bandwidth_bytes_per_sec': used * 1e9,
            'bandwidth_max_bytes_per_sec': maximum and maximum * 1e9,
            **fields,
        }

    def test_a_saturated_memory_controller_is_avoided(self):
        view = view_of_nodes(
            node_view(0, demand_cores=0.0, **self.loaded(90)),
            node_view(1, demand_cores=3.0, **self.loaded(10)),
        )
        self.assertEqual((1,), place(view).cpu_nodes)

    def test_unknown_on_one_candidate_is_assumed_as_on_the_others(self):
        view = view_of_nodes(
            node_view(0, demand_cores=1.0, **self.loaded(90)),
            node_view(1, demand_cores=0.0, **self.loaded(10, None)),
        )
        placed = place(view)
        self.assertEqual(0.9, dict(placed.reasons[0].values)['instead_pressure'])
        self.assertIn(model.Reason('bandwidth_assumed'), placed.reasons)

    def test_without_any_maximum_bandwidth_is_left_out(self):
        placed = place(view_of_nodes(*(node_view(at, **self.loaded(90, None)) for at in range(2))))
        self.assertIn(model.Reason('bandwidth_dropped'), placed.reasons)

    def test_a_busy_link_counts_as_pressure(self):
        view = view_of_nodes(
            node_view(0, demand_cores=0.0, link_ratio=0.9),
            node_view(1, demand_cores=1.0, link_ratio=0.1),
        )
        self.assertEqual((1,), place(view).cpu_nodes)

    def test_a_guest_with_more_traffic_than_a_node_can_bear_spans_nodes(self):
        view = view_of_nodes(*(node_view(at, **self.loaded(0)) for at in range(4)))
        for gigabytes, count in ((10, 1), (150, 4), (900, 4)):
            placed = place(view, vcpus=4, bandwidth_bytes_per_sec=gigabytes * 1e9)
            self.assertEqual(count, len(placed.cpu_nodes))

    def test_a_guest_with_much_traffic_does_not_span_a_node_that_is_full(self):
        pools = [((GIB, 4 * GIB),), ((2 * MIB, 4 * GIB),)]
        for name, full, page_bytes in (
            ('normal pages', {'promised': 8 * GIB}, None),
            ('huge pages of another size', {}, GIB),
        ):
            with self.subTest(name):
                view = view_of_nodes(
                    node_view(0, huge_free_bytes=pools[0], **self.loaded(0)),
                    node_view(1, huge_free_bytes=pools[1], **self.loaded(0), **full),
                )
                placed = place(view, bandwidth_bytes_per_sec=150, page_bytes=page_bytes)
                self.assertEqual(((0,), (0,)), (placed.cpu_nodes, placed.mem_nodes))


class SpanTest(unittest.TestCase):
    def test_a_guest_larger_than_a_node_spans_the_closest_pair(self):
        nodes = [node_view(at, capacity=(4 + (at == 2)) * GIB) for at in range(4)]
        placed = place(view_of_nodes(*nodes, distances=two_level_distances(4, 2)), 2, 6 * GIB)
        self.assertEqual('span', code(placed))
        self.assertIn(placed.cpu_nodes, ((0, 1), (2, 3)))
        self.assertEqual(placed.cpu_nodes, placed.mem_nodes)
        self.assertEqual('no_node_fits', placed.reasons[1].code)

    def test_a_guest_with_more_vcpus_than_a_node_spans_nodes(self):
        self.assertEqual(
            (0, 1), place(view_of_nodes(node_view(0), node_view(1)), vcpus=6).cpu_nodes
        )

    def test_pressure_comes_before_closeness(self):
        nodes = [node_view(at, vcpus=8 * (at == 0)) for at in range(3)]
        distances = ((10, 12, 21), (12, 10, 21), (21, 21, 10))
        self.assertEqual(
            (1, 2), place(view_of_nodes(*nodes, distances=distances), vcpus=6).cpu_nodes
        )

    def test_memory_that_fits_nowhere_stays_unbound(self):
        placed = place(view_of_nodes(node_view(0, vcpus=4), node_view(1)), memory=99 * GIB)
        self.assertEqual(
            ('cpus_only', (1,), ()), (code(placed), placed.cpu_nodes, placed.mem_nodes)
        )

    def test_a_guest_that_fits_nowhere_and_exceeds_a_node_spans_nodes(self):
        placed = place(
            view_of_nodes(*(node_view(at) for at in range(3))), vcpus=7, memory=99 * GIB
        )
        self.assertEqual(('cpus_only', 2), (code(placed), len(placed.cpu_nodes)))

    def test_a_guest_with_more_vcpus_than_the_host_is_left_alone(self):
        placed = place(view_of_nodes(node_view(0), node_view(1)), vcpus=9)
        self.assertEqual(('too_few_cpus', ()), (code(placed), placed.cpu_nodes))


class ShapeTest(unittest.TestCase):
    def test_a_cpu_only_node_takes_guests_with_memory_of_the_nearest(self):
        view = view_of_nodes(
            node_view(0, vcpus=8),
            node_view(1, capacity=0),
            node_view(2, vcpus=8),
            distances=((10, 12, 21), (12, 10, 21), (21, 21, 10)),
        )
        placed = place(view)
        self.assertEqual(((1,), (0,)), (placed.cpu_nodes, placed.mem_nodes))

    def test_nodes_that_share_channels_are_one_place(self):
        nodes = [node_view(at, cpus=frozenset(range(4 * at, 4 * at + 4))) for at in range(4)]
        view = view_of_nodes(*nodes, distances=two_level_distances(4, 2, near=11))
        shared = view._replace(domains=(0, 0, 2, 2))
        placed = place(shared, vcpus=6, memory=12 * GIB)
        self.assertEqual(
            ('one_node', (0, 1), frozenset(range(8))),
            (code(placed), placed.cpu_nodes, placed.cpus),
        )
        self.assertEqual('span', code(place(view, 6, 12 * GIB)))


class AllowedTest(unittest.TestCase):
    VIEW = view_of_nodes(
        node_view(0, cpus=frozenset({0, 1, 2, 3})), node_view(1, cpus=frozenset({4, 5, 6, 7}))
    )

    def test_a_guest_stays_within_the_cpus_it_may_use(self):
        placed = place(self.VIEW, vcpus=2, allowed_cpus=frozenset({3, 5, 6}))
        self.assertEqual(((1,), frozenset({5, 6})), (placed.cpu_nodes, placed.cpus))

    def test_a_guest_spans_nodes_where_its_allowed_cpus_are_split(self):
        placed = place(self.VIEW, vcpus=2, allowed_cpus=frozenset({3, 5}))
        self.assertEqual(((0, 1), frozenset({3, 5})), (placed.cpu_nodes, placed.cpus))

    def test_a_guest_without_an_allowed_cpu_here_is_left_alone(self):
        self.assertEqual('too_few_cpus', code(place(self.VIEW, allowed_cpus=frozenset({99}))))

    def test_without_a_topology_a_place_names_no_cpus(self):
        placed = place(view_of_nodes(node_view(0), node_view(1)), allowed_cpus=frozenset({99}))
        self.assertEqual((True, None), (bool(placed.cpu_nodes), placed.cpus))


class HugePagesTest(unittest.TestCase):
    def test_huge_pages_fit_by_their_own_pool(self):
        view = view_of_nodes(
            node_view(0, huge_free_bytes=((2 * MIB, 4 * GIB),)),
            node_view(1, capacity=0, huge_free_bytes=((2 * MIB, 8 * GIB), (GIB, 64 * GIB))),
        )
        self.assertEqual((1,), place(view, memory=6 * GIB, page_bytes=2 * MIB).cpu_nodes)
        self.assertEqual((0, 1), place(view, memory=9 * GIB, page_bytes=2 * MIB).cpu_nodes)

    def test_normal_memory_is_not_a_substitute_for_huge_pages(self):
        placed = place(view_of_nodes(node_view(0), node_view(1)), page_bytes=2 * MIB)
        self.assertEqual(('cpus_only', ()), (code(placed), placed.mem_nodes))


class DeviceTest(unittest.TestCase):
    def test_a_device_draws_its_guest_while_its_node_is_fine(self):
        self.assertEqual(
            (1,),
            place(view_of_nodes(node_view(0), node_view(1, vcpus=3)), device_nodes=(1,)).cpu_nodes,
        )

    def test_a_device_does_not_draw_its_guest_into_pressure(self):
        self.assertEqual(
            (0,),
            place(view_of_nodes(node_view(0), node_view(1, vcpus=8)), device_nodes=(1,)).cpu_nodes,
        )

    def test_an_unknown_device_node_is_ignored(self):
        self.assertEqual(
            (0,), place(view_of_nodes(node_view(0), node_view(1)), device_nodes=(-1, 9)).cpu_nodes
        )


class PolicyTest(unittest.TestCase):
    VIEW = view_of_nodes(node_view(0), node_view(1), node_view(2, cores=0, capacity=64 * GIB))

    def test_policy_spread_takes_every_node_with_cpus(self):
        placed = place(self.VIEW, policy=model.SPREAD)
        self.assertEqual(((0, 1), (0, 1)), (placed.cpu_nodes, placed.mem_nodes))

    def test_policy_one_node_never_spans_nodes(self):
        placed = place(self.VIEW, memory=12 * GIB, policy=model.ONE_NODE)
        self.assertEqual((1, ()), (len(placed.cpu_nodes), placed.mem_nodes))
        self.assertEqual('no_single_node', code(place(self.VIEW, vcpus=6, policy=model.ONE_NODE)))

    def test_a_guest_that_must_not_be_placed_is_left_alone_with_the_reason(self):
        placed = place(self.VIEW, why_alone='placed_by_others', placed_by=('numatune', 'vcpupin'))
        self.assertEqual(
            ((), 'left alone: placed by others (numatune, vcpupin)'),
            (placed.cpu_nodes, reasons.explain(placed)),
        )


class PromiseTest(unittest.TestCase):
    def test_memory_of_a_spanning_guest_is_divided_over_what_is_left(self):
        view = view_of_nodes(node_view(0, promised=6 * GIB), node_view(1))
        wide = guest(memory=9 * GIB)
        placed = placement.place(
            view, host_view.request(wide, PLACEMENT_OPTIONS), PLACEMENT_OPTIONS
        )
        promise = placement.new_promise(wide, placed, 7)
        self.assertEqual((9 * GIB // 5, 9 * GIB - 9 * GIB // 5), promise.mem_node_bytes)

    def test_a_guest_pinned_by_others_is_promised_its_memory_nodes(self):
        pinned = guest(placed_by=('numatune',), numatune_nodes=(0,))
        promise = placement.new_promise(pinned, model.Placement(()), 7)
        self.assertEqual(
            ((), (0,), 'pinned'), (promise.cpu_nodes, promise.mem_nodes, promise.origin)
        )

    def test_memory_that_numatune_does_not_bind_is_where_the_pinned_vcpus_run(self):
        pinned = guest(placed_by=('vcpupin',), pinned_nodes=(1,))
        self.assertEqual((1,), placement.new_promise(pinned, model.Placement(()), 7).mem_nodes)


class CoresTest(unittest.TestCase):
    """One node, if its cores hold the guest at less loss than the distance of the nearest set."""

    @staticmethod
    def host(cores, demands=(0.0, 0.0), distances=None):
        """Build a host of nodes with so many cores, of two threads each."""
        nodes = [
            node_view(at, 1.25 * cores, 2 * cores, 1 << 40, demand_cores=demand)
            for at, demand in enumerate(demands)
        ]
        return view_of_nodes(*nodes, distances=distances)

    def test_cores_and_not_threads_hold_a_guest(self):
        for cores, fitting in ((16, 20), (32, 40), (64, 80)):
            for vcpus in range(fitting + 1, 2 * cores + 1):
                # Half of what they have is expected of vCPUs without evidence.
                for demand in (vcpus, None):
                    placed = place(self.host(cores), vcpus, demand_cores=demand)
                    self.assertEqual(('span', (0, 1)), (code(placed), placed.cpu_nodes))
                    pressure = dict(placed.reasons[0].values)['pressure']
                    self.assertAlmostEqual((demand or vcpus / 2) / 2.5 / cores, pressure)

    def test_a_guest_of_few_vcpus_stays_on_one_node(self):
        for cores in (2, 16, 32, 64):
            for vcpus in range(1, cores + 1):
                for demand in (vcpus, vcpus / 2, vcpus / 10, None):
                    placed = place(self.host(cores), vcpus, demand_cores=demand)
                    self.assertEqual('one_node', code(placed))

    def test_a_guest_of_one_vcpu_stays_on_one_node_where_all_are_busy(self):
        for cores in (0.8, 2, 16):
            for pressure in (0.0, 0.5, 1.0, 2.0):
                demands = (1.25 * cores * pressure,) * 4
                near = two_level_distances(4, 2, 11, 21)
                self.assertEqual('one_node', code(place(self.host(cores, demands, near), 1)))

    def test_peers_that_want_little_show_that_fewer_cores_will_do(self):
        self.assertEqual('one_node', code(place(self.host(16), 32, demand_cores=4)))

    def test_where_no_node_has_idle_cores_a_guest_gets_two_near_ones(self):
        for demands, near, far in (
            ((14.0, 14.0, 14.0, 14.0), 'span', 'one_node'),
            # Where all wait, it waits as long on two nodes as on one.
            ((16.0, 16.0, 16.0, 16.0), 'one_node', 'one_node'),
            ((10.0, 10.0, 10.0, 10.0), 'span', 'one_node'),
            ((1.0, 1.0, 1.0, 1.0), 'one_node', 'one_node'),
        ):
            for distances, expected in (
                (two_level_distances(4, 2, 12, 21), near),
                (two_level_distances(4, 1), far),
            ):
                view = self.host(12, demands, distances)
                view = view._replace(nodes=tuple(one._replace(vcpus=60) for one in view.nodes))
                placed = place(view, 8, demand_cores=2)
                self.assertEqual(expected, code(placed))
                if expected == 'span' and expected != far:
                    self.assertIn(placed.cpu_nodes, ((0, 1), (2, 3)))

    def test_a_set_for_its_cpus_has_room_for_a_part_of_the_memory_on_each_node(self):
        full = node_view(1, demand_cores=0.0, promised=8 * GIB)
        placed = place(view_of_nodes(node_view(0, demand_cores=8.0), full))
        self.assertEqual(('one_node', (0,)), (code(placed), placed.cpu_nodes))


class CeilingTest(unittest.TestCase):
    """What a guest may grow to is not what it needs."""

    def test_of_equal_nodes_the_one_with_room_to_grow_is_taken(self):
        for fields in ({'memory_max_bytes': 12 * GIB}, {'vcpus_max': 6}):
            for roomy in (0, 1):
                nodes = [
                    node_view(
                        at,
                        cpu_count=8 if at == roomy else 4,
                        capacity=16 * GIB if at == roomy else 8 * GIB,
                        promised=8 * GIB if at == roomy and 'vcpus_max' in fields else 0,
                    )
                    for at in (0, 1)
                ]
                placed = place(view_of_nodes(*nodes), 2, **fields)
                self.assertEqual((roomy,), placed.cpu_nodes)
                # Pressure still comes first.
                nodes[roomy] = nodes[roomy]._replace(vcpus=1)
                self.assertNotEqual((roomy,), place(view_of_nodes(*nodes), 2, **fields).cpu_nodes)


class PressureTest(unittest.TestCase):
    def pressure_with(self, *nodes, vcpus=2, **fields):
        inputs = candidates.PlacementInput(
            view_of_nodes(*nodes), model.Request(vcpus, GIB, **fields)
        )
        return placement.pressure_with(inputs, PLACEMENT_OPTIONS)

    def test_a_guest_that_is_left_alone_presses_on_all_nodes_and_the_busiest_counts(self):
        busy, idle = node_view(0, 4, demand_cores=4.0), node_view(1, 4, demand_cores=0.0)
        alone = self.pressure_with(busy, idle, vcpus=9)
        self.assertGreater(alone, self.pressure_with(busy, idle))

    def test_pressure_is_the_highest_where_no_node_has_cpus(self):
        self.assertEqual(ranking.PRESSURE_MAX, self.pressure_with(node_view(0, 0)))
