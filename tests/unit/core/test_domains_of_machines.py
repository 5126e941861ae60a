# SPDX-License-Identifier: Apache-2.0
"""Caches and sockets show which nodes share memory channels, and which are near each other."""

import unittest
from itertools import product

from nova_numa_pmc.core import host_view, memory_domains
from nova_numa_pmc.core.placement import placement
from tests.fixtures.model_records import (
    GIB,
    PLACEMENT_OPTIONS,
    guest,
    topology,
    two_level_distances,
)

AMD, INTEL, HYGON = 'AuthenticAMD', 'GenuineIntel', 'HygonGenuine'


def machine(nodes, cpus_per_node, cpus_per_l3, per_socket, vendor, near=11, far=21):
    """Build a host of equal nodes, with its caches and sockets."""
    count = nodes * cpus_per_node
    caches = [
        frozenset(range(first, first + cpus_per_l3)) for first in range(0, count, cpus_per_l3)
    ]
    host = topology(
        [cpus_per_node] * nodes,
        [8 * GIB] * nodes,
        distances=two_level_distances(nodes, per_socket, near, far),
    )
    return host._replace(
        l3s=tuple(tuple(cache for cache in caches if cache & node.cpus) for node in host.nodes),
        sockets=tuple(at // per_socket for at in range(nodes)),
        vendor=vendor,
    )


#: As shown by kernels: (host, domains).
SHAPES = {
    'one node a socket': (machine(2, 8, 8, 1, INTEL), ()),
    'SNC-2': (machine(4, 4, 8, 2, INTEL), ()),
    'SNC-4': (machine(8, 4, 16, 4, INTEL), ()),
    'cluster-on-die of many nodes': (machine(16, 2, 16, 8, INTEL), ()),
    'NPS1, many caches': (machine(2, 16, 4, 1, AMD), ()),
    'NPS4, three caches a node': (machine(8, 12, 4, 4, AMD), ()),
    # numactl -H of a host with two EPYC 7413.
    'NPS4, a cache a node': (machine(8, 6, 6, 4, AMD, near=12, far=32), ()),
    'L3 as NUMA, eight a socket': (machine(16, 4, 4, 8, AMD), (0,) * 8 + (8,) * 8),
    'L3 as NUMA, twelve a socket': (machine(24, 8, 8, 12, AMD), (0,) * 12 + (12,) * 12),
    'L3 as NUMA, one socket': (machine(8, 4, 4, 8, HYGON, far=11), (0,) * 8),
    'as many nodes a socket, not AMD': (machine(16, 4, 4, 8, 'HiSilicon'), ()),
    'caches not known': (machine(16, 4, 4, 8, AMD)._replace(l3s=()), ()),
    'sockets not known': (machine(16, 4, 4, 8, AMD)._replace(sockets=(None,) * 16), ()),
}


#: Distances of AMD's firmware: between L3 caches behind the same memory controllers, between the
#: controllers of a socket, and between sockets. FLAT: a SLIT that says nothing.
FIRMWARE, FLAT = (11, 12, 32), (20, 20, 20)


def epyc(sockets, nps, l3s_per_socket, l3_as_numa, slit=FIRMWARE):
    """Build a host of EPYCs, and the part of a socket (by memory controllers) of each node."""
    l3s_per_node = 1 if l3_as_numa else l3s_per_socket // nps
    nodes_per_socket = l3s_per_socket // l3s_per_node
    parts = [
        (socket, node * nps // nodes_per_socket)
        for socket in range(sockets)
        for node in range(nodes_per_socket)
    ]
    host = machine(len(parts), 2 * l3s_per_node, 2, nodes_per_socket, AMD)
    near, far, remote = slit
    return host._replace(
        distances=tuple(
            tuple(
                10 if a == b else near if part == other else far if part[0] == other[0] else remote
                for b, other in enumerate(parts)
            )
            for a, part in enumerate(parts)
        )
    ), parts


class DomainsTest(unittest.TestCase):
    def test_nodes_of_an_epyc_share_channels_where_its_firmware_says_so(self):
        for sockets, nps, l3s, l3_as_numa in product(
            (1, 2), (1, 2, 4), (2, 4, 6, 8, 12, 16), (False, True)
        ):
            if l3s < nps or (l3s % nps and not l3_as_numa):
                continue
            with self.subTest(sockets=sockets, nps=nps, l3s=l3s, l3_as_numa=l3_as_numa):
                host, parts = epyc(sockets, nps, l3s, l3_as_numa)
                domains = memory_domains.domains(host)
                self.assertEqual(memory_domains.domains_from_labels(parts), domains)

    def test_a_slit_that_says_nothing_leaves_more_than_four_caches_of_a_socket_together(self):
        for sockets, nps, l3s in product((1, 2), (1, 2, 4), (2, 4, 8, 12, 16)):
            if l3s < nps:
                continue
            with self.subTest(sockets=sockets, nps=nps, l3s=l3s):
                host, parts = epyc(sockets, nps, l3s, True, FLAT)
                together = [socket for socket, _ in parts] if l3s > 4 else range(len(parts))
                self.assertEqual(
                    memory_domains.domains_from_labels(together), memory_domains.domains(host)
                )

    def test_sub_numa_clusters_have_controllers_of_their_own_whatever_their_distances(self):
        for sockets, clusters, vendor, near in product(
            (1, 2), (2, 3, 4), (INTEL, AMD), (11, 12, 20)
        ):
            host = machine(sockets * clusters, 4, 4 * clusters, clusters, vendor, near=near)
            with self.subTest(sockets=sockets, clusters=clusters, vendor=vendor, near=near):
                self.assertEqual((), memory_domains.domains(host))

    def test_domains_follow_from_each_shape_of_machine(self):
        for name, (host, expected) in SHAPES.items():
            with self.subTest(name):
                self.assertEqual(expected, memory_domains.domains(host))


class DistancesTest(unittest.TestCase):
    def test_a_slit_that_tells_sockets_apart_stays(self):
        for name, (host, _) in SHAPES.items():
            with self.subTest(name):
                self.assertIs(host.distances, memory_domains.distances(host))

    def test_a_flat_slit_is_replaced_by_the_distances_of_sockets(self):
        flat = machine(4, 2, 4, 2, INTEL, near=20, far=20)
        self.assertEqual(two_level_distances(4, 2, 20, 21), memory_domains.distances(flat))
        placed = placement.place(
            host_view.view(flat, (), PLACEMENT_OPTIONS, rotation=1),
            host_view.request(guest(vcpus=4), PLACEMENT_OPTIONS),
            PLACEMENT_OPTIONS,
        )
        self.assertIn(placed.cpu_nodes, ((0, 1), (2, 3)))
