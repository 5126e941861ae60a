# SPDX-License-Identifier: Apache-2.0
"""Test to which L3 cache of its place a guest is held."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import l3, placement, reasons
from tests.fixtures.model_records import GIB, MIB, PLACEMENT_OPTIONS, guest, topology

NODES, CACHES, CPUS = 2, 4, 4


def machine(threads=1):
    """Build two nodes with four caches of four CPUs each."""
    cpus_per_node = CACHES * CPUS
    host = topology([cpus_per_node] * NODES, [64 * GIB] * NODES, threads=threads)
    return host._replace(
        l3s=tuple(
            tuple(
                frozenset(
                    range(node * cpus_per_node + at * CPUS, node * cpus_per_node + (at + 1) * CPUS)
                )
                for at in range(CACHES)
            )
            for node in range(NODES)
        )
    )


class Host:
    """A host on which guests start one after the other."""

    def __init__(self, host=None, loads=None):
        self.host, self.loads, self.promises = host or machine(), loads, []
        self.reasons: tuple[model.Reason, ...] = ()

    def start(self, vcpus, **fields):
        """Place a guest; return the CPUs to which it is held, None if it is left alone."""
        new = guest(f'{len(self.promises)}', vcpus, MIB, **fields)
        view = host_view.view(
            self.host, self.promises, PLACEMENT_OPTIONS, self.loads, len(self.promises)
        )
        request = host_view.request(new, PLACEMENT_OPTIONS)
        placed = placement.place(view, request, PLACEMENT_OPTIONS)
        cpus, self.reasons = l3.choose(
            self.host, view, self.promises, placed.cpu_nodes, request, PLACEMENT_OPTIONS
        )
        self.promises.append(placement.new_promise(new, placed, 0, cpus))
        return placed.cpus.intersection(cpus) or placed.cpus


class ChooseTest(unittest.TestCase):
    def test_guests_are_spread_evenly_over_nodes_and_their_caches(self):
        host = Host()
        held = [host.start(2) for _ in range(NODES * CACHES)]
        self.assertEqual({cache for caches in host.host.l3s for cache in caches}, set(held))
        self.assertEqual([0, 1] * 4, [min(cpus) // 16 for cpus in held])

    def test_the_cache_with_fewer_vcpus_is_taken(self):
        host = Host(machine())
        sizes = [host.start(vcpus, allowed_cpus=frozenset(range(16))) for vcpus in (3, 1, 2, 2)]
        self.assertEqual(4, len(set(sizes)))
        self.assertEqual(sizes[1], host.start(1, allowed_cpus=frozenset(range(16))))

    def test_a_guest_that_no_cache_fits_has_its_nodes_cpus(self):
        host = Host()
        self.assertEqual(16, len(host.start(5)))
        self.assertEqual((), host.reasons)

    def test_a_crowded_cache_gives_way_to_the_nodes(self):
        host = Host()
        held = [host.start(4) for _ in range(24)]
        self.assertEqual([4] * 8 + [16] * 16, [len(cpus) for cpus in held])
        self.assertEqual([reasons.L3_CROWDED], [reason.code for reason in host.reasons])

    def test_guests_that_use_several_caches_count_in_parts(self):
        host = Host()
        host.promises.append(model.Promise('w', 'w', (0,), (0,), 8, MIB))
        host.promises.append(
            model.Promise('n', 'n', (0,), (0,), 2, MIB, l3_cpus=tuple(host.host.l3s[0][0]))
        )
        self.assertEqual(host.host.l3s[0][1], host.start(1, allowed_cpus=frozenset(range(16))))

    def test_a_single_or_unknown_cache_of_a_node_is_not_chosen(self):
        host = machine()
        for l3s in ((), ((), ()), tuple((node.cpus,) for node in host.nodes)):
            with self.subTest(l3s=l3s):
                self.assertEqual(16, len(Host(host._replace(l3s=l3s)).start(2)))

    def test_a_cache_of_a_single_core_is_not_a_place(self):
        """QEMU gives each socket of a guest its own cache, and a compute host may be a guest."""
        for threads in (1, 2):
            with self.subTest(threads=threads):
                host = machine(threads)
                host = host._replace(
                    l3s=tuple(
                        tuple(core for core in host.cores if core <= node.cpus)
                        for node in host.nodes
                    )
                )
                self.assertEqual([16, 16], [len(Host(host).start(vcpus)) for vcpus in (1, 2)])

    @given(st.lists(st.integers(1, 6), max_size=30), st.none() | st.floats(0, 40))
    def test_no_cache_is_more_crowded_than_its_node_beyond_the_floor(self, sizes, demand):
        host = Host(
            loads=None if demand is None else {at: model.NodeLoad(demand) for at in range(NODES)}
        )
        for vcpus in sizes:
            cpus = host.start(vcpus)
            reasons = dict(host.reasons[0].values) if host.reasons else {}
            self.assertGreaterEqual(len(cpus), vcpus)
            if len(cpus) == CPUS:
                view = host_view.view(host.host, host.promises, PLACEMENT_OPTIONS, host.loads)
                node = view.nodes[min(cpus) // 16]
                together = (node.demand_cores or 0.5 * node.vcpus) + 0.5 * vcpus
                self.assertLessEqual(reasons['pressure'], max(0.7, together / node.cores) + 1e-6)
