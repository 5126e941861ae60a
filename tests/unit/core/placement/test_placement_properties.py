# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for every host and every order of starts."""

import unittest
from itertools import chain, combinations

from hypothesis import assume, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view, memory_domains
from nova_numa_pmc.core.placement import placement, reasons
from tests.fixtures.host_views import hosts
from tests.fixtures.model_records import MIB, PLACEMENT_OPTIONS, guest, node_view, topology

QUICK = settings(max_examples=150)

requests = st.builds(model.Request, st.integers(1, 24), st.integers(0, 99).map(MIB.__mul__))


def start(host_topology, promises, new, placement_options=PLACEMENT_OPTIONS):
    view = host_view.view(host_topology, promises, placement_options, rotation=len(promises))
    placed = placement.place(view, host_view.request(new, placement_options), placement_options)
    return view, placed


def feasible(view, new):
    """Return whether any set of nodes holds the guest, by trying all of them."""
    sizes = range(1, len(view.nodes) + 1)
    return any(
        sum(one.capacity_bytes - one.promised_bytes for one in chosen) >= new.memory_bytes
        and sum(one.cpu_count for one in chosen) >= new.vcpus
        for chosen in chain.from_iterable(combinations(view.nodes, k) for k in sizes)
    )


class PropertyTest(unittest.TestCase):
    @QUICK
    @given(
        st.lists(st.tuples(st.integers(1, 6), st.integers(1, 64)), min_size=2, max_size=4),
        st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40), st.booleans()), max_size=14),
    )
    def test_promises_stay_within_capacity_while_something_fits(self, shape, steps):
        machine = topology([cpus for cpus, _ in shape], [size * MIB for _, size in shape])
        promises = []
        for rotation, (vcpus, size, departs) in enumerate(steps):
            if departs and promises:
                promises.pop(size % len(promises))
                continue
            new = guest(str(rotation), vcpus, size * MIB)
            view, placed = start(machine, promises, new)
            self.assertEqual(feasible(view, new), bool(placed.mem_nodes))
            if placed.mem_nodes:
                promises.append(placement.new_promise(new, placed, rotation))
            for kept in host_view.view(machine, promises, PLACEMENT_OPTIONS).nodes:
                self.assertLessEqual(kept.promised_bytes, kept.capacity_bytes)

    @QUICK
    @given(st.integers(2, 6), st.integers(1, 96), st.integers(1, 8), st.data())
    def test_equal_guests_on_equal_nodes_differ_by_at_most_one(self, count, cpus, vcpus, data):
        guests = data.draw(st.integers(1, 8 * count))
        least = -(-guests // count)
        memory = [data.draw(st.integers(least, 9 * least)) * MIB for _ in range(count)]
        machine = topology(
            [cpus] * count,
            [9 * least * MIB] * count,
            unreclaimable=[9 * least * MIB - left for left in memory],
        )
        machine = machine._replace(
            nodes=tuple(
                one._replace(free_bytes=data.draw(st.integers(0, 9 * least)) * MIB)
                for one in machine.nodes
            )
        )
        promises, rotation = [], data.draw(st.integers(0, 9))
        for at in range(guests):
            new = guest(str(at), min(vcpus, cpus), MIB)
            view = host_view.view(machine, promises, PLACEMENT_OPTIONS, rotation=rotation + at)
            request = host_view.request(new, PLACEMENT_OPTIONS)._replace(policy=model.ONE_NODE)
            placed = placement.place(view, request, PLACEMENT_OPTIONS)
            promises.append(placement.new_promise(new, placed, at))
            on = [sum(kept.cpu_nodes == (n,) for kept in promises) for n in range(count)]
            self.assertEqual(at + 1, sum(on))
            self.assertLessEqual(max(on) - min(on), 1)

    @QUICK
    @given(hosts(), requests, st.randoms(use_true_random=False))
    def test_permuting_nodes_permutes_the_places(self, view, request, random):
        # Of equally near nodes with memory, a node without any takes that of one fixed order, in
        # which those before it count as farther by 1.
        memoryless = [node.id for node in view.nodes if memory_domains.is_memoryless(node)]
        for node in memoryless:
            distances = sorted(
                distance
                for other, distance in enumerate(view.distances[node])
                if other not in memoryless
            )
            assume(len(distances) < 2 or distances[1] - distances[0] > 1)
        order = list(range(len(view.nodes)))
        random.shuffle(order)
        moved = model.HostView(
            tuple(view.nodes[at]._replace(id=to) for to, at in enumerate(order)),
            tuple(tuple(view.distances[a][b] for b in order) for a in order),
        )

        def outcomes(view, name):
            # Equal nodes rotate by position, so the results of all rotations are compared.
            placed = [
                placement.place(view._replace(rotation=rotation), request, PLACEMENT_OPTIONS)
                for rotation in range(len(order))
            ]
            return {
                (
                    frozenset(map(name, one.cpu_nodes)),
                    frozenset(map(name, one.mem_nodes)),
                    one.reasons[0].code,
                )
                for one in placed
            }

        first, second = outcomes(view, int), outcomes(moved, order.__getitem__)
        self.assertEqual(first, second)

    @QUICK
    @given(hosts(measured=True), requests, st.data())
    def test_more_pressure_on_a_node_never_attracts_a_guest(self, view, request, data):
        request = request._replace(
            policy=model.ONE_NODE,
            device_nodes=data.draw(st.sampled_from([(), (0,), (1,)])),
            bandwidth_bytes_per_sec=data.draw(st.none() | st.floats(0, 50)),
        )
        before = placement.place(view, request, PLACEMENT_OPTIONS)
        at = data.draw(st.integers(0, len(view.nodes) - 1))
        field = data.draw(
            st.sampled_from(
                ['demand_cores', 'bandwidth_bytes_per_sec', 'link_ratio', 'vcpus', 'guests']
            )
        )
        more = view.nodes[at]._replace(
            **{field: getattr(view.nodes[at], field) + data.draw(st.floats(0, 20))}
        )
        after = placement.place(
            view._replace(nodes=(*view.nodes[:at], more, *view.nodes[at + 1 :])),
            request,
            PLACEMENT_OPTIONS,
        )
        # On a node without memory, the guest would use that of another node.
        has_memory = not any(memory_domains.is_memoryless(view.nodes[n]) for n in before.cpu_nodes)
        if at not in before.cpu_nodes and has_memory:
            self.assertEqual(before.cpu_nodes, after.cpu_nodes)

    @QUICK
    @given(
        hosts(count=st.integers(1, 3)),
        requests,
        st.none() | st.floats(0, 300),
        st.lists(st.none() | st.floats(0, 300), min_size=1, max_size=2),
    )
    def test_nodes_without_anything_for_guests_change_no_place(
        self, view, request, bandwidth, more
    ):
        request = request._replace(bandwidth_bytes_per_sec=bandwidth)
        kept = tuple(
            node_view(9 + at, 0, capacity=0, bandwidth_max_bytes_per_sec=most)
            for at, most in enumerate(more)
        )
        count = len(view.nodes) + len(kept)
        with_kept = model.HostView(
            tuple(one._replace(link_ratio=None) for one in view.nodes) + kept,
            tuple(
                tuple(
                    view.distances[a][b] if max(a, b) < len(view.nodes) else 10 if a == b else 80
                    for b in range(count)
                )
                for a in range(count)
            ),
        )
        alone = model.HostView(with_kept.nodes[: len(view.nodes)], view.distances)
        first, second = (
            placement.place(one, request, PLACEMENT_OPTIONS) for one in (alone, with_kept)
        )
        self.assertEqual(first._replace(reasons=()), second._replace(reasons=()))
        self.assertEqual(first.reasons[:1], second.reasons[:1])

    @QUICK
    @given(
        hosts(count=st.integers(0, 4), cores=st.integers(0, 3)),
        requests,
        st.sampled_from(model.POLICIES),
        st.none() | st.floats(0, 99),
        st.sampled_from([None, 4096]),
        st.integers(0, 30),
    )
    def test_odd_hosts_never_raise(self, view, request, policy, bandwidth, page_bytes, near):
        view = view._replace(domains=memory_domains.domains_from_distances(view.distances, near))
        placed = placement.place(
            view,
            request._replace(
                policy=policy,
                bandwidth_bytes_per_sec=bandwidth,
                page_bytes=page_bytes,
                device_nodes=(0, 7),
            ),
            PLACEMENT_OPTIONS,
        )
        self.assertTrue(reasons.explain(placed))
        self.assertLessEqual(set(placed.cpu_nodes) | set(placed.mem_nodes), {0, 1, 2, 3})
