# SPDX-License-Identifier: Apache-2.0
"""The hook, the agent and explain use only CPUs and memory nodes that a guest may use."""

import os
import shutil
import tempfile

from hypothesis import HealthCheck, example, given, settings, strategies as st

from nova_numa_pmc.agent.agent import Agent, Moment
from nova_numa_pmc.checks import compute_host
from nova_numa_pmc.cli.commands import explain
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.cpulist import format_cpulist, parse_cpulist
from nova_numa_pmc.host import guests
from nova_numa_pmc.model import MIB
from tests.cases.agent import START_NS, AgentCase
from tests.cases.hook import HookCase
from tests.fixtures import fake_host, measured_host

SLICE = 'sys/fs/cgroup/machine.slice'
NORT = SLICE + '/machine-nort.slice'
PARTITION = '<resource><partition>/machine/nort</partition></resource>'
NUMATUNE = "<numatune><memory mode='%s' nodeset='%s'/></numatune>"
EVERY_CPU = frozenset(range(8))


def allow(case, group, cpus, mems='0-1'):
    """Give a group effective sets, which are also its own."""
    for kind, text in (('cpus', cpus), ('mems', mems)):
        case.host.write('%s/cpuset.%s' % (group, kind), text + '\n')
        case.host.write('%s/cpuset.%s.effective' % (group, kind), text + '\n')


def limit_scope(case, tree, cpus, mems='0-1'):
    """Limit a running guest, as systemctl set-property does with its scope."""
    allow(case, os.path.relpath(tree.scope, case.root), cpus, mems)


class HookTest(HookCase):
    def place(self, number, **more):
        xml = fake_host.domain_xml(number, **more)
        self.call('start', number, xml)
        return self.promises()[fake_host.uuid_of(number)]

    def start(self, number, cpus=None, **more):
        """Start a guest whose scope then has only these CPUs; return its groups and promise."""
        xml = fake_host.domain_xml(number, **more)
        self.call('start', number, xml)
        tree = self.host.launch(number, xml=xml)
        if cpus:
            limit_scope(self, tree, cpus)
        self.call('started', number, xml)
        return tree, self.promises()[fake_host.uuid_of(number)]

    def test_guests_of_a_slice_are_promised_only_nodes_of_which_it_has_cpus(self):
        allow(self, SLICE, '2-7')
        allow(self, NORT, '2-3')
        placed = [self.place(number, extra=PARTITION).cpu_nodes for number in range(4)]
        self.assertEqual([(0,)] * 4, placed)
        self.assertIn('machine-nort.slice allows only CPUs 2-3', ' '.join(self.host.logged()))

    def test_the_property_that_isolates_cpus_is_named_to_the_guests_that_lack_them(self):
        for path, text, why in (
            ('sys/devices/system/cpu/isolated', '1-7', 'isolcpus= on the kernel command line'),
            ('sys/fs/cgroup/cpuset.cpus.isolated', '1-7', 'an isolated partition'),
        ):
            self.host.write(path, text + '\n')
            for number, cpuset, shown in ((1, None, '1-7'), (2, '0-2', '1-2'), (3, '0', None)):
                self.place(number, cpuset=cpuset)
                logged = ' '.join(self.host.logged())
                self.assertEqual(bool(shown), why in logged)
                if shown:
                    self.assertIn('keeps guests off CPUs ' + shown, logged)
            self.host.write(path, '\n')

    def test_a_guest_is_too_large_for_the_cpus_that_it_has_of_a_node(self):
        allow(self, SLICE, '0-5')
        self.assertEqual((0,), self.place(0, vcpus=3).cpu_nodes)

    def test_a_limit_that_is_first_seen_once_a_guest_runs_moves_its_promise(self):
        for number, cpus, node in ((1, '4-5', 1), (2, '2-3', 0), (3, '6-7', 1)):
            tree, promise = self.start(number, cpus)
            self.assertEqual(((node,), (node,)), (promise.cpu_nodes, promise.mem_nodes))
            self.assertEqual((True, 'placed'), (promise.started, promise.origin))
            self.assertEqual(cpus, tree.held())

    def test_the_first_guest_of_a_boot_is_held_within_the_slice_that_it_creates(self):
        for number in (1, 2):
            self.host.write('etc/systemd/system/machine.slice', '[Slice]\nAllowedCPUs=6-7\n')
            tree, promise = self.start(number, '6-7')
            self.assertEqual(((1,), '6-7'), (promise.cpu_nodes, tree.held()))

    def test_a_guest_is_not_narrowed_early_to_cpus_that_it_may_not_use(self):
        trees = []

        def launch_and_hold(work, report):
            trees.append(self.host.launch(1 + len(trees), status=False))
            limit_scope(self, trees[-1], '2-3')
            for vcpu in trees[-1].vcpus:
                shutil.rmtree(vcpu)
            work()

        for number in (1, 2):
            self.call('start', number, run_detached=launch_and_hold)
        self.assertEqual({(0,), (1,)}, {promise.cpu_nodes for promise in self.promises().values()})
        self.assertEqual({'2-3', ''}, {tree.read(tree.parent, 'cpuset.cpus') for tree in trees})

    def test_memory_goes_only_to_nodes_that_the_slice_allows(self):
        allow(self, SLICE, '0-7', '1')
        for number in range(4):
            self.assertEqual((1,), self.place(number).mem_nodes)

    def test_the_cpus_of_a_guest_follow_the_memory_that_numatune_alone_gives_nodes(self):
        for number, mode in enumerate(('strict', 'restrictive', 'preferred', 'interleave')):
            tree, promise = self.start(number, extra=NUMATUNE % (mode, '1'))
            self.assertEqual(((1,), (1,)), (promise.cpu_nodes, promise.mem_nodes), mode)
            self.assertEqual('4-7', tree.held())
            large = self.place(number + 4, vcpus=6, extra=NUMATUNE % (mode, '1'))
            self.assertEqual('pinned', large.origin, mode)

    def test_a_numatune_over_all_nodes_excludes_nothing(self):
        placed = [
            self.place(number, extra=NUMATUNE % ('strict', '0-1')).cpu_nodes for number in range(2)
        ]
        self.assertEqual([(0,), (1,)], placed)

    def test_memory_that_is_interleaved_over_all_nodes_is_promised_there(self):
        tree, promise = self.start(3, extra=NUMATUNE % ('interleave', '0-1'))
        self.assertEqual(((0, 1), (0, 1)), (promise.cpu_nodes, promise.mem_nodes))
        self.assertEqual('0-7', tree.held())


class AgentTest(AgentCase):
    def limited(self, cpus='2-3', mems='0-1', node=1, xml=None, **more):
        """Launch a guest that is promised a node, with its memory on the other one."""
        tree = self.host.launch(1, {1 - node: 100 * MIB, node: 0}, xml=xml)
        self.set_guest_times(1, 0)
        limit_scope(self, tree, cpus, mems)
        self.promise(1, node, **more)
        return tree

    def promised(self):
        return self.promises()[fake_host.uuid_of(1)]

    def test_a_promise_follows_a_limit_and_no_memory_is_fetched_from_where_the_guest_runs(self):
        tree = self.limited(since_ns=START_NS)
        agent = self.open_agent(rebalance='off')
        with self.assertLogs('nova_numa_pmc', 'INFO') as logs:
            for at_s in (0, 5, 10):
                self.tick(agent, at_s)
                self.assertIsNone(agent.step(), 'nothing is being moved')
        self.assertEqual(((0,), (0,)), (self.promised().cpu_nodes, self.promised().mem_nodes))
        self.assertEqual('2-3', tree.held())
        self.assertIn('promised node 0 instead of node 1', ' '.join(logs.output))
        self.assertIn('.scope allows only CPUs 2-3', ' '.join(logs.output))

    def test_a_guest_with_some_cpus_of_its_node_is_held_to_these(self):
        tree = self.limited('0-5')
        self.tick(self.open_agent(), 0)
        self.assertEqual(((1,), '4-5'), (self.promised().cpu_nodes, tree.held()))

    def test_a_guest_with_too_few_cpus_of_its_node_is_held_to_all_that_it_may_use(self):
        for cpus in ('3-4', '3,5-7', '2-5'):
            with self.subTest(cpus):
                tree = self.limited(cpus, node=0, vcpus=4, xml=fake_host.domain_xml(1, vcpus=4))
                self.tick(self.open_agent(), 0)
                self.assertEqual(((0, 1), cpus), (self.promised().cpu_nodes, tree.held()))

    def test_a_promise_of_memory_follows_a_limit_of_memory_nodes(self):
        self.limited('0-7', '0')
        self.tick(self.open_agent(), 0)
        self.assertEqual(((1,), (0,)), (self.promised().cpu_nodes, self.promised().mem_nodes))

    def test_a_bound_guest_is_unbound_where_its_nodes_are_no_longer_its_own(self):
        for cpus, mems in (('0-7', '0'), ('0-3', '0-1')):
            with self.subTest(cpus=cpus, mems=mems):
                tree = self.limited('0-7', bound=True)
                tree.set_all('1', 'mems')
                limit_scope(self, tree, cpus, mems)
                self.tick(self.open_agent(), 0)
                self.assertEqual(((0,), False), (self.promised().mem_nodes, self.promised().bound))
                self.assertNotEqual('1', tree.held('mems'))

    def test_check_names_the_group_that_limits_a_guest(self):
        self.limited()
        (finding,) = compute_host.check_limits(self.root)
        self.assertEqual(('cpus-limited', 'warning'), (finding.code, finding.severity))
        self.assertIn('allows only CPUs 2-3; this applies to instance-', finding.message)

    def test_guests_of_different_slices_have_pools_of_their_own(self):
        for number, cpus in ((1, '0-1,4-5'), (2, '2-3,6-7')):
            limit_scope(self, self.launch(number), cpus)
            self.promise(number, 0)
        agent = self.open_agent()
        self.tick(agent, 0)
        tick = self.tick(agent, 5)
        self.assertEqual(
            {EVERY_CPU, parse_cpulist('0-1,4-5'), parse_cpulist('2-3,6-7')},
            {pool.cpus for pool in tick.publication.pools},
        )


def cpus_of(node):
    return frozenset(range(4 * node, 4 * node + 4))


CPU_SETS = st.sets(st.integers(0, 7), min_size=1).map(frozenset)
MODES = ('strict', 'restrictive', 'preferred', 'interleave')
MEM_SETS = st.sampled_from([frozenset({0}), frozenset({1}), frozenset({0, 1})])


class EveryDoorTest(HookCase):
    """A guest on a host whose slices, scope, XML, Nova's set and isolation are drawn."""

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @example(
        slice_cpus=frozenset(range(6)),
        scope_cpus=frozenset(range(5)),
        mems=frozenset({0}),
        vcpu_set=frozenset({0, 5}),
        nova_set=None,
        isolated=set(),
        memory_node=0,
        numatune=None,
    )
    @example(
        slice_cpus=frozenset({0, 1, 4}),
        scope_cpus=frozenset({0, 4}),
        mems=frozenset({0}),
        vcpu_set=None,
        nova_set=None,
        isolated={0},
        memory_node=0,
        numatune=('preferred', frozenset({1})),
    )
    @example(
        slice_cpus=frozenset({0, 1, 4}),
        scope_cpus=frozenset({0, 1, 4}),
        mems=frozenset({0}),
        vcpu_set=None,
        nova_set=frozenset({4}),
        isolated=set(),
        memory_node=0,
        numatune=('strict', frozenset({0})),
    )
    @example(
        slice_cpus=frozenset({0, 1}),
        scope_cpus=frozenset({0, 1}),
        mems=frozenset({0}),
        vcpu_set=frozenset({0, 1}),
        nova_set=frozenset({0}),
        isolated=set(),
        memory_node=0,
        numatune=None,
    )
    @given(
        slice_cpus=CPU_SETS,
        scope_cpus=CPU_SETS,
        mems=MEM_SETS,
        vcpu_set=st.none() | CPU_SETS,
        nova_set=st.none() | CPU_SETS,
        isolated=st.sets(st.integers(0, 7), max_size=3),
        memory_node=st.integers(0, 1),
        numatune=st.none() | st.tuples(st.sampled_from(MODES), MEM_SETS),
    )
    def test_no_door_leaves_what_a_guest_may_use(
        self, slice_cpus, scope_cpus, mems, vcpu_set, nova_set, isolated, memory_node, numatune
    ):
        scope_cpus = scope_cpus & slice_cpus or slice_cpus  # as in the kernel
        may_use = (scope_cpus if vcpu_set is None else scope_cpus & vcpu_set) - isolated
        mode, nodes = numatune or ('', frozenset({0, 1}))
        xml = fake_host.domain_xml(
            1,
            cpuset=vcpu_set and format_cpulist(vcpu_set),
            extra=NUMATUNE % (mode, format_cpulist(nodes)) if mode else '',
        )
        with tempfile.TemporaryDirectory() as self.root:
            self.host = measured_host.MeasuredHost(self.root, isolated=format_cpulist(isolated))
            self.host.set_idle()
            allow(self, SLICE, format_cpulist(slice_cpus), format_cpulist(mems))
            self.call('start', 1, xml)
            tree = self.host.launch(1, {memory_node: 100 * MIB}, xml=xml)
            allow(self, SLICE, format_cpulist(slice_cpus), format_cpulist(mems))
            limit_scope(self, tree, format_cpulist(scope_cpus), format_cpulist(mems))
            self.call('started', 1, xml)
            self.check(tree, may_use, mems, nodes)
            self.check_explained(may_use, mems, nodes)
            if nova_set:
                self.host.write(
                    'etc/nova/nova.conf',
                    '[compute]\ncpu_shared_set = %s\n' % format_cpulist(nova_set),
                )
            agent = Agent(
                opts.AgentOptions(
                    host_options.read_under_root(self.root), opts.CounterOptions(enabled=False)
                ),
                self.root,
            )
            agent.tick(Moment(0, START_NS, 1000.0))
            # The other doors learn Nova's set from the agent's publication, which has yet to come.
            # A guest of the operator's keeps the set of its XML.
            of_nova = may_use if vcpu_set else may_use & (nova_set or may_use) or may_use
            self.check(tree, of_nova, mems, nodes)
            self.check_explained(may_use, mems, nodes)
            agent.close()
            self.host.close()

    def check(self, tree, may_use, mems, nodes):
        """Check the guest's groups and its promise.

        :param nodes: ids of the nodes that numatune gives to its memory
        """
        promise = self.promises().get(fake_host.uuid_of(1))
        for directory in tree.children:
            self.assertLessEqual(parse_cpulist(tree.read(directory, 'cpuset.cpus')), may_use)
        if promise and promise.origin == 'placed':
            self.assertLessEqual(set(promise.mem_nodes), mems)
            for node in promise.cpu_nodes:
                self.assertTrue(may_use & cpus_of(node))
            if any(may_use & cpus_of(node) for node in nodes):
                self.assertTrue(nodes & set(promise.cpu_nodes))

    def check_explained(self, may_use, mems, nodes):
        options = host_options.read_under_root(self.root)
        (guest,), _ = guests.read_running(self.root)
        decision, _ = explain.decide_unrecorded(guest, options, self.root)
        self.assertLessEqual(decision.cpus or frozenset(), may_use)
        if decision.promise.origin == 'placed':
            self.assertLessEqual(set(decision.promise.mem_nodes), mems & nodes)
            near_cpus = frozenset().union(*map(cpus_of, nodes))
            self.assertLessEqual(decision.cpus or frozenset(), near_cpus)
