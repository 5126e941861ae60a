# SPDX-License-Identifier: Apache-2.0
"""Test how hosts of all shapes, also odd and damaged ones, are read, and where guests then go."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest

from hypothesis import HealthCheck, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import explain, placement
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import topology
from tests.fixtures import sysfs
from tests.fixtures.sysfs_trees import GIB, MIB, SysfsTree, totals_in_files, trees

#: Trees per test: `NUMA_PMC_CASES=20000` for the long run.
CASES = int(os.environ.get('NUMA_PMC_CASES', '150'))
MEMORY = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
PLACEMENT_OPTIONS = model.PlacementOptions(reserve_bytes=0)

REQUESTS = st.builds(
    model.Request,
    st.sampled_from((0, 1, 2, 4, 9, 64)),
    st.integers(1, 400).map(lambda count: count * 256 * MIB),
    st.sampled_from((None, None, None, 2 * MIB, GIB)),
    st.one_of(st.none(), st.frozensets(st.integers(0, 40), max_size=20)),
    policy=st.sampled_from(model.POLICIES),
    device_nodes=st.lists(st.integers(0, 30), max_size=2).map(tuple),
    bandwidth_bytes_per_sec=st.sampled_from((None, 1e9, 45e9, 130e9, 1e12)),
)
#: By node id; nodes that are kept from guests have figures as well.
LOADS = st.dictionaries(
    st.integers(0, 12),
    st.builds(
        model.NodeLoad,
        st.sampled_from((None, 0.5, 2.0)),
        st.sampled_from((None, 0, 9e9)),
        st.sampled_from((None, 30e9, 60e9)),
    ),
    max_size=12,
) | st.just(dict.fromkeys(range(80), model.NodeLoad(0.5, 9e9, 60e9)))
SOME_NODES = st.sets(st.integers(0, 12), max_size=3).map(sorted).map(tuple)
PROMISES = st.lists(
    st.builds(
        model.Promise,
        st.uuids().map(str),
        st.just('g'),
        SOME_NODES,
        SOME_NODES,
        st.integers(0, 8),
        st.integers(0, 80).map(lambda count: count * 256 * MIB),
        st.sampled_from((None, None, GIB)),
        st.just(False),
        st.sampled_from((model.PLACED, model.BY_OTHERS, model.FLOATING)),
        st.just(0),
    ),
    max_size=4,
)


class TreesTest(unittest.TestCase):
    def read(self, tree: SysfsTree) -> tuple:
        """Write a tree and read it.

        :returns: (topology or None, CPUs and bytes according to the files, nodes that the package
            puts into no ``cpuset.mems``)
        """
        root = tempfile.mkdtemp(dir=MEMORY)
        try:
            tree.write(root)
            try:
                host = topology.read(root)
            except TopologyError as error:
                self.assertTrue(tree.damaged, error)
                self.assertTrue(str(error).startswith(root) and str(error).isprintable(), error)
                host = None
            return host, totals_in_files(root), topology.withheld_nodes(root)
        finally:
            shutil.rmtree(root)

    def check_capacity(self, host, cpus, memory_bytes):
        seen = host_view.view(host, (), PLACEMENT_OPTIONS)
        online = [cpu for node in host.nodes for cpu in node.online_cpus]
        self.assertEqual(len(set(online)), len(online), 'a CPU on two nodes')
        self.assertLessEqual(len(online), cpus)
        self.assertLessEqual(sum(node.cpu_count for node in seen.nodes), cpus)
        self.assertLessEqual(sum(node.cores for node in seen.nodes), cpus)
        self.assertLessEqual(
            sum(
                node.capacity_bytes + sum(free for _, free in node.huge_free_bytes)
                for node in seen.nodes
            ),
            memory_bytes,
        )
        for node, there in zip(seen.nodes, host.nodes):
            pools = sum(pool.page_bytes * pool.total for pool in there.huge_pages)
            self.assertLessEqual(node.capacity_bytes + pools, max(there.memory_bytes, pools))

    def check_place(self, host, request, promises, loads):
        seen = host_view.view(host, promises, PLACEMENT_OPTIONS, loads)
        ids = {node.id for node in host.nodes}
        offered = {
            node.id
            for node in host.nodes
            if node.memory_bytes and node.memory.kind == model.HOST_MEMORY
        }
        placed = placement.place(seen, request, PLACEMENT_OPTIONS)
        self.assertTrue(explain.explain(placed).isprintable())
        self.assertLessEqual({*placed.cpu_nodes, *placed.mem_nodes}, ids)
        self.assertLessEqual(set(placed.mem_nodes), offered)
        if placed.mem_node_bytes:
            unit_bytes = request.page_bytes or 1
            whole_units = -(-request.memory_bytes // unit_bytes)
            self.assertEqual(whole_units * unit_bytes, sum(placed.mem_node_bytes))
        if placed.cpus is not None:
            self.assertLessEqual(max(1, request.vcpus), len(placed.cpus))
            self.assertLessEqual(
                placed.cpus,
                frozenset().union(
                    *(node.cpus for node in host.nodes if node.id in placed.cpu_nodes)
                ),
            )
        floating = [promise._replace(mem_nodes=()) for promise in promises]
        for node in host_view.view(host, floating, PLACEMENT_OPTIONS).nodes:
            if offered and node.id not in offered:
                self.assertEqual(0, node.promised_bytes, 'promised where no guest lies')

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(trees(), REQUESTS, PROMISES, LOADS)
    def test_a_host_is_what_it_was_drawn_to_be(self, tree, request, promises, loads):
        host, nodes, kept_off = self.read(tree)
        self.check_capacity(host, *nodes)
        self.check_place(host, request, promises, loads)
        self.assertEqual(set(tree.kept), kept_off)
        self.assertEqual(sorted(node.id for node in tree.nodes), [n.id for n in host.nodes])
        self.assertEqual(tree.online, frozenset().union(*(n.online_cpus for n in host.nodes)))
        self.assertEqual(tree.online, frozenset().union(*host.cores))
        self.assertEqual(len(tree.online), sum(map(len, host.cores)))
        self.assertEqual(bool(tree.twice), bool(host.problems))
        usable = tree.online - sysfs.parse_cpulist(tree.isolated)
        self.assertEqual(usable, frozenset().union(*(node.cpus for node in host.nodes)))
        for node, drawn in zip(
            host.nodes, sorted(tree.nodes, key=lambda drawn_node: drawn_node.id)
        ):
            self.assertEqual(tree.kept.get(node.id, model.HOST_MEMORY), node.memory.kind)
            self.assertEqual(drawn.memory_bytes, node.memory_bytes)
        kept = sum(node.memory_bytes for node in tree.nodes if node.id in tree.kept)
        pools = sum(
            size * total for node in tree.nodes for size, (total, _) in node.huge_pages.items()
        )
        capacity = sum(
            node.capacity_bytes for node in host_view.view(host, (), PLACEMENT_OPTIONS).nodes
        )
        if not tree.changes:
            unreclaimable = sum(node.unreclaimable_bytes for node in tree.nodes)
            self.assertLessEqual(nodes[1] - kept - pools - unreclaimable, capacity)
        self.assertLessEqual(capacity, nodes[1] - kept - min(pools, nodes[1] - kept))

    @settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(trees(damaged=True), REQUESTS, PROMISES, LOADS)
    def test_damaged_files_raise_nothing_but_a_named_error(self, tree, request, promises, loads):
        host, nodes, _ = self.read(tree)
        if host is not None:
            self.check_capacity(host, *nodes)
            self.check_place(host, request, promises, loads)
            host_view.quantise(host_view.view(host, promises, PLACEMENT_OPTIONS))
