# SPDX-License-Identifier: Apache-2.0
"""Each way to place guests inside a host chooses, binds and moves as its source describes."""

import inspect
import types
import unittest

import numpy as np

from tests.arena import fleet as fleets, hosts, inside
from tests.arena.inside import others, ours

MIB_PER_GIB = 1024
#: Names of the ways that leave guests where they started.
STAY = 'floating', 'numad-advice', 'xen', 'incus-balanced', 'katalyst-like'


class Guest:
    """A guest on a node of the only host; None: it is not there yet."""

    def __init__(self, node, vcpus, gib, wanted=0.0, dedicated=False):
        self.node, self.vcpus, self.gib = node, vcpus, gib
        self.wanted, self.dedicated = wanted, dedicated


def fleet_of(guests, shape='equal'):
    """Return a host of two nodes of 30 cores and 256 GiB (subnuma: four of 15 and 128)."""
    trace = types.SimpleNamespace(
        arrive_s=np.zeros(len(guests)),
        vcpus=np.array([guest.vcpus for guest in guests]),
        memory_mib=np.array([guest.gib * MIB_PER_GIB for guest in guests]),
        disk_gb=np.zeros(len(guests), np.int64),
        dedicated=np.array([guest.dedicated for guest in guests]),
        wants=np.zeros((len(guests), 1)),
    )
    rows = np.eye(hosts.Hosts(shape, 1, np.random.default_rng(1)).nodes)
    fleet = fleets.Fleet(
        hosts.Hosts(shape, 1, np.random.default_rng(1)),
        trace,
        lambda fleet, host, guest: (rows[guests[guest].node], rows[guests[guest].node]),
    )
    for at, guest in enumerate(guests):
        if guest.node is not None:
            fleet.claim(at, 0)
            fleet.start(at, 0.0)
            fleet.wanted[at] = fleet.usual[at] = guest.wanted
            fleet.node_demand[0, guest.node] += guest.wanted
    return fleet


def chosen(way, *guests, shape='equal'):
    """Return the nodes of the last guest's CPUs, and the parts of its memory."""
    cpus, memory = inside.WAYS[way](fleet_of(guests, shape), 0, len(guests) - 1)
    return np.flatnonzero(cpus).tolist(), memory.tolist()


def nodes_of(way, *guests, shape='equal'):
    """Return the nodes of the last guest's CPUs."""
    return chosen(way, *guests, shape=shape)[0]


class StartTest(unittest.TestCase):
    def test_floating_is_on_all_nodes_with_memory_where_it_is_free(self):
        cpus, memory = chosen('floating', Guest(0, 4, 128), Guest(None, 4, 8))
        self.assertEqual([0, 1], cpus)
        np.testing.assert_allclose([1 / 3, 2 / 3], memory)

    def test_measured_demand_decides_for_numad_and_us(self):
        guests = Guest(0, 8, 16, 1.0), Guest(0, 8, 16, 1.0), Guest(1, 8, 16, 8.0)
        for way in ('placed', 'numad', 'numad-advice'):
            self.assertEqual([0], nodes_of(way, *guests, Guest(None, 8, 32)), way)
        for way in ('xen', 'incus-balanced', 'katalyst-like'):
            self.assertEqual([1], nodes_of(way, *guests, Guest(None, 8, 32)), way)

    def test_numad_advises_more_nodes_where_no_node_has_as_many_idle_cpus(self):
        busy = Guest(0, 32, 16, 25.0), Guest(1, 32, 16, 26.0)
        self.assertEqual([0, 1], nodes_of('numad-advice', *busy, Guest(None, 8, 8)))
        self.assertEqual([0], nodes_of('numad-advice', *busy, Guest(None, 4, 8)))

    def test_numad_takes_memory_from_the_nearest_nodes(self):
        guest = Guest(None, 4, 200)
        self.assertEqual([0, 1], nodes_of('numad-advice', guest, shape='subnuma'))
        busy = Guest(0, 8, 16, 8.0)
        self.assertEqual([2, 3], nodes_of('numad-advice', busy, guest, shape='subnuma'))

    def test_xen_takes_the_fewest_vcpus_then_the_most_free_memory(self):
        one, other = Guest(0, 8, 64), Guest(1, 8, 16)
        self.assertEqual([1], nodes_of('xen', one, other, Guest(None, 8, 32)))
        self.assertEqual([0], nodes_of('xen', one, Guest(1, 16, 16), Guest(None, 8, 32)))

    def test_xen_takes_as_few_nodes_as_have_room(self):
        filled = [Guest(node, 1, 120) for node in range(3)]
        self.assertEqual([3], nodes_of('xen', *filled, Guest(None, 4, 32), shape='subnuma'))
        filled.append(Guest(3, 1, 120))
        self.assertEqual(
            [0, 1, 2, 3], nodes_of('xen', *filled, Guest(None, 4, 32), shape='subnuma')
        )
        self.assertEqual([0, 1], nodes_of('xen', Guest(None, 64, 32)))

    def test_incus_counts_instances_whatever_their_size(self):
        guests = Guest(0, 32, 128, 20.0), Guest(1, 1, 2), Guest(1, 1, 2)
        self.assertEqual([0], nodes_of('incus-balanced', *guests, Guest(None, 8, 32)))

    def test_incus_takes_as_many_nodes_as_the_vcpus_need(self):
        self.assertEqual([0, 1], nodes_of('incus-balanced', Guest(None, 64, 32)))

    def test_memory_without_room_lies_on_the_other_nodes(self):
        cpus, memory = chosen(
            'incus-balanced', Guest(1, 1, 2), Guest(1, 1, 2), Guest(None, 8, 384)
        )
        self.assertEqual([0], cpus)
        np.testing.assert_allclose([2 / 3, 1 / 3], memory)

    def test_katalyst_takes_what_is_left_with_most_requests_and_has_memory(self):
        guests = Guest(0, 32, 16), Guest(1, 8, 240)
        self.assertEqual([1], nodes_of('katalyst-like', *guests, Guest(None, 8, 8)))
        self.assertEqual([0], nodes_of('katalyst-like', *guests, Guest(None, 8, 32)))

    def test_katalyst_binds_nothing_that_fits_on_no_node(self):
        full = Guest(0, 190, 16), Guest(1, 190, 16)
        self.assertEqual([0, 1], nodes_of('katalyst-like', *full, Guest(None, 8, 8)))

    def test_dedicated_guests_are_pinned_by_nova_whatever_the_way(self):
        for way in inside.WAYS:
            guests = Guest(0, 4, 64), Guest(None, 4, 8, dedicated=True)
            self.assertEqual(([1], [0.0, 1.0]), chosen(way, *guests, shape='pools'), way)


class MoveTest(unittest.TestCase):
    #: An overloaded node next to an idle one.
    CROWDED = [Guest(0, 16, 32, 12.0), Guest(0, 16, 16, 12.0), Guest(0, 16, 8, 12.0)]

    def moved(self, way, guests):
        fleet = fleet_of(guests)
        inside.WAYS[way].relieve(fleet, np.arange(len(guests)))
        self.assertEqual(fleet.moves, fleet.cpu_parts[:, 1].astype(bool).sum())
        return np.flatnonzero(fleet.cpu_parts[:, 1]).tolist()

    def test_numad_and_we_move_guests_off_a_crowded_node(self):
        self.assertEqual([0], self.moved('placed', self.CROWDED))
        self.assertEqual([0], self.moved('numad', self.CROWDED))

    def test_other_ways_leave_guests_where_they_started(self):
        self.assertEqual({*STAY, 'placed', 'numad'}, {*inside.WAYS})
        for way in STAY:
            self.assertEqual([], self.moved(way, self.CROWDED), way)

    def test_numad_leaves_guests_alone_that_use_little(self):
        self.assertEqual([], self.moved('numad', [Guest(0, 8, 8, 0.5), Guest(0, 8, 8, 0.4)]))

    def test_numad_leaves_guests_alone_that_are_where_it_wants_them(self):
        self.assertEqual([], self.moved('numad', [Guest(0, 16, 32, 8.0)]))

    def test_numad_moves_memory_with_the_cpus(self):
        fleet = fleet_of(self.CROWDED)
        inside.WAYS['numad'].relieve(fleet, np.arange(3))
        np.testing.assert_array_equal(fleet.cpu_parts, fleet.memory_parts)
        self.assertEqual([24 * MIB_PER_GIB, 32 * MIB_PER_GIB], fleet.promised_mib[0].tolist())
        self.assertEqual([2, 1], fleet.node_guests[0].tolist())


class WaysTest(unittest.TestCase):
    def test_each_way_names_its_source_formula_and_deviations(self):
        functions = (
            ours.placed,
            others.floating,
            others.numad,
            others.numad_daemon,
            others.xen,
            others.incus_balanced,
            others.katalyst_like,
        )
        for function in functions:
            for word in ('Source:', 'Formula:', 'Deviations:'):
                self.assertIn(word, function.__doc__, function.__name__)
            doc = function.__doc__.splitlines()
            lines = inspect.getsource(function).splitlines()
            self.assertLessEqual(len(lines) - len(doc), 30, function.__name__)
