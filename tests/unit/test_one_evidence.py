# SPDX-License-Identifier: Apache-2.0
"""The hook, the scheduler and ``explain`` use the same evidence and choose the same place."""

import tempfile
import unittest
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, assume, given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.cli.commands import explain
from nova_numa_pmc.core.measurements import PoolSample
from nova_numa_pmc.model import NodeLoad
from tests.fixtures import sysfs
from tests.fixtures.model_records import GIB
from tests.fixtures.published_host import PublishedHost

NEAR = [[10, 11, 21, 21], [11, 10, 21, 21], [21, 21, 10, 11], [21, 21, 11, 10]]
#: Hosts with two nodes, with four, with several caches per node, with sub-NUMA clusters, with ten
#: nodes in two domains, with unequal nodes, and with two nodes and two GPUs.
SHAPES: dict[str, tuple[Sequence[sysfs.FakeNode], dict[str, Any]]] = {
    'two': (sysfs.equal_nodes(2, 16, 64 * GIB), {}),
    'siblings': (sysfs.equal_nodes(2, 16, 64 * GIB), {'threads': 2}),
    'four': (sysfs.equal_nodes(4, 8, 16 * GIB), {}),
    'NPS': (
        sysfs.equal_nodes(2, 16, 64 * GIB),
        {'l3s': [f'{4 * at}-{4 * at + 3}' for at in range(8)], 'vendor': 'AuthenticAMD'},
    ),
    'SNC': (
        sysfs.equal_nodes(4, 8, 16 * GIB),
        {'distances': NEAR, 'l3s': ['0-15', '16-31'], 'sockets': (0, 0, 1, 1)},
    ),
    'flat': (
        sysfs.equal_nodes(4, 8, 16 * GIB),
        {
            'distances': [[10 if a == b else 20 for b in range(4)] for a in range(4)],
            'l3s': ['0-15', '16-31'],
            'sockets': (0, 0, 1, 1),
        },
    ),
    'L3 as NUMA': (
        sysfs.equal_nodes(10, 4, 4 * GIB),
        {
            'distances': [
                [10 if a == b else 11 if a // 5 == b // 5 else 32 for b in range(10)]
                for a in range(10)
            ],
            'vendor': 'AuthenticAMD',
            'l3s': [f'{4 * at}-{4 * at + 3}' for at in range(10)],
            'sockets': (0,) * 5 + (1,) * 5,
        },
    ),
    'unequal': (
        [
            sysfs.FakeNode(0, '0-3', 8 * GIB),
            sysfs.FakeNode(2, '4-15', 32 * GIB),
            sysfs.FakeNode(5, '', 64 * GIB),
        ],
        {},
    ),
    'withheld': (
        [
            *sysfs.equal_nodes(2, 16, 64 * GIB),
            sysfs.FakeNode(2, '', 96 * GIB),
            sysfs.FakeNode(3, '', 96 * GIB),
        ],
        {},
    ),
}


def amounts(most):
    return st.floats(0, most, allow_nan=False)


def columns(most):
    """Draw a quantity for each of four nodes: known for all, for none, or for some."""
    return st.one_of(
        st.lists(amounts(most), min_size=4, max_size=4),
        st.just([None] * 4),
        st.lists(st.none() | amounts(most), min_size=4, max_size=4),
    )


measurements = st.builds(
    lambda *parts: [NodeLoad(*each) for each in zip(*parts)],
    columns(40),
    columns(2e11),
    columns(2e11),
    columns(1.5),
    st.just([None] * 4) | columns(3),
)
promised_guests = st.lists(
    st.tuples(st.sampled_from([(0,), (1,), (0, 1), ()]), st.integers(1, 12), st.integers(1, 9000)),
    max_size=8,
)
flavors = st.fixed_dictionaries(
    {'vcpus': st.integers(1, 20), 'memory_mib': st.integers(1, 20000)},
    optional={
        'policy': st.sampled_from([model.ONE_NODE, model.SPREAD, model.AUTO]),
        'memory_intensity': st.sampled_from(['low', 'medium', 'high']),
    },
)
#: Of no guests, and of guests that wanted up to a whole core per vCPU.
histories = st.just(model.DemandHistory()) | st.builds(
    lambda guests, hundredths: model.DemandHistory(guests, guests * hundredths / 100),
    st.integers(1, 50),
    st.integers(0, 130),
)
#: A few files are written for each example.
WITH_FILES = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


class HostCase(unittest.TestCase):
    def host(self, shape='two'):
        directory = tempfile.TemporaryDirectory(prefix='evidence-')
        self.addCleanup(directory.cleanup)
        nodes, more = SHAPES[shape]
        published_host = PublishedHost(directory.name, nodes, **more)
        self.addCleanup(published_host.close)
        return published_host

    def measured(self, host, loads, promised=(), rotation=0, age_s=0.0, history=None):
        host.promise(promised, rotation)
        host.publish(dict(zip(host.node_ids, loads)), age_s, history)


class ReproductionTest(HostCase):
    """24 of 16 cores are wanted on node 0, 0.3 on node 1; the promises suggest the opposite."""

    def setUp(self):
        self.host_ = self.host()
        self.loads = [NodeLoad(24.0), NodeLoad(0.3)]
        self.promised = [((1,), 8, 1024)]

    def test_fewer_promises_do_not_outweigh_a_node_where_guests_wait(self):
        self.measured(self.host_, self.loads, self.promised)
        self.assertEqual((1,), self.host_.place_by_scheduler())
        self.assertEqual((1,), self.host_.place_by_explain())
        decision = self.host_.decide()
        self.assertEqual((1,), decision.promise.cpu_nodes)
        self.assertIn('; based on the pressure measured 0 s ago', decision.why)

    def test_old_evidence_is_not_used_and_the_log_says_so(self):
        self.measured(self.host_, self.loads, self.promised, age_s=95)
        decision = self.host_.decide()
        self.assertEqual((0,), decision.promise.cpu_nodes)
        self.assertIn('; based on promises alone: the publication is 95 s old', decision.why)

    def test_without_an_agent_promises_decide(self):
        self.host_.promise(self.promised)
        decision = self.host_.decide()
        self.assertEqual((0,), decision.promise.cpu_nodes)
        self.assertIn('; based on promises alone: the agent has published nothing', decision.why)

    def test_a_publication_of_another_boot_is_not_used_as_evidence(self):
        self.measured(self.host_, self.loads, self.promised)
        self.host_.write('proc/sys/kernel/random/boot_id', '0' * 36)
        self.assertIn(
            '; based on promises alone: the publication is from another boot',
            self.host_.decide().why,
        )

    def test_a_damaged_file_costs_a_warning_and_not_the_place(self):
        self.measured(self.host_, self.loads, self.promised)
        self.host_.write('run/nova-numa-pmc/host', 'x')
        decision = self.host_.decide()
        self.assertEqual((0,), decision.promise.cpu_nodes)
        self.assertIn('nova-numa-pmc/host: Expecting value', ' '.join(decision.problems))

    def test_guests_that_came_since_are_charged_by_their_promises(self):
        self.measured(self.host_, [NodeLoad(1.0), NodeLoad(0.3)])
        taken = [self.host_.place_by_hook(number, vcpus=4) for number in range(901, 905)]
        self.assertEqual([(1,), (0,), (1,), (0,)], taken)

    def test_new_guests_are_expected_to_want_less_where_others_idle(self):
        self.measured(
            self.host_, [NodeLoad(14.0), NodeLoad(16.0)], history=model.DemandHistory(45, 0.0)
        )
        # At 0.05 cores per vCPU, node 0 remains emptier for each guest; at 0.5, only for the
        # first.
        taken = [self.host_.place_by_hook(number, vcpus=8) for number in range(901, 904)]
        self.assertEqual([(0,)] * 3, taken)
        self.measured(self.host_, [NodeLoad(14.0), NodeLoad(16.0)])
        taken = [self.host_.place_by_hook(number, vcpus=8) for number in range(901, 904)]
        self.assertEqual([(0,), (1,), (0,)], taken)

    def test_a_pool_of_other_shares_is_not_charged_for_guests_that_have_not_come(self):
        self.host_.promise([((0, 1), 16, 4096), ((), 16, 4096)])
        cpus = (0, 1, *range(16, 24))
        own = PoolSample(cpus, ((0, 1.0), (1, 3.0)), ((0, 0.0), (1, 0.0)))
        self.host_.publish({0: NodeLoad(1.0), 1: NodeLoad(5.0)}, other_pools=(own,))
        guest = self.host_.guest(900)._replace(allowed_cpus=frozenset(cpus))
        for came, demand in ((0, [1.0, 3.0]), (4, [3.0, 3.0])):
            if came:
                self.host_.place_by_hook(901, vcpus=came)
            decision, _ = explain.decide_unrecorded(guest, self.host_.options, self.host_.root)
            self.assertEqual(demand, [node.demand_cores for node in decision.view.nodes])

    def test_guests_that_went_since_are_relieved_by_their_promises(self):
        self.measured(self.host_, [NodeLoad(4.0), NodeLoad(3.0)], [((0,), 8, 1024)])
        self.assertEqual((1,), self.host_.place_by_explain())
        self.host_.end(0)
        self.assertEqual((0,), self.host_.place_by_explain())


class OneEvidenceTest(HostCase):
    def setUp(self):
        self.hosts = {}

    def drawn(self, shape, loads, promised, rotation, history):
        host = self.hosts.get(shape) or self.hosts.setdefault(shape, self.host(shape))
        if shape == 'unequal':
            promised = [(tuple(2 * node for node in nodes), *rest) for nodes, *rest in promised]
        self.measured(host, loads, promised, rotation, history=history)
        return host

    @WITH_FILES
    @given(
        st.sampled_from(sorted(SHAPES)),
        measurements,
        promised_guests,
        st.integers(0, 9),
        histories,
        flavors,
    )
    def test_hook_scheduler_and_explain_choose_the_same_nodes(
        self, shape, loads, promised, rotation, history, flavor
    ):
        host = self.drawn(shape, loads, promised, rotation, history)
        scheduled = host.place_by_scheduler(**flavor)
        assume(scheduled is not None)
        self.assertEqual(scheduled, host.place_by_explain(**flavor))
        self.assertEqual(scheduled, host.place_by_hook(**flavor))
