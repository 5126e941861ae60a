# SPDX-License-Identifier: Apache-2.0
"""The agent places guests whose hook failed, and fetches their memory, once."""

import os
from unittest import mock

from nova_numa_pmc import hook
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core import promising
from nova_numa_pmc.core.rebalance.plan_records import RebalanceOptions
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import files
from nova_numa_pmc.host.page_moves.process_pages import PAGE_BYTES
from nova_numa_pmc.state import overrides, pause, promises_file
from tests.cases.agent import LOG, MIB, SECOND, START_NS, AgentCase
from tests.cases.rebalancing import PAGES, RebalancingCase
from tests.fixtures import domains, fake_host, services

JOB = "  <job type='none' async='start' phase='none'/>\n"


class PlaceTest(AgentCase):
    def install_hook(self):
        self.host.write(files.HOOKS + '/' + files.OUR_HOOK, '#!/bin/sh\n')

    def began(self, number, after_hook=True):
        """Set whether QEMU was executed after the hook was installed or long before."""
        now_s = files.boottime_ns() / 1e9
        began = (now_s + 5 if after_hook else now_s - 5) * os.sysconf('SC_CLK_TCK')
        services.write_stat(self.root, 4000 + number, began)

    def placed(self, number):
        promise = self.promises()[fake_host.uuid_of(number)]
        return promise.origin, promise.cpu_nodes, promise.started, promise.missed

    def test_a_guest_without_a_record_is_placed_within_two_ticks(self):
        self.install_hook()
        agent = self.open_agent()
        trees = [self.launch(number) for number in (1, 2)]
        for number in (1, 2):
            self.began(number)
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.tick(agent, 0)
            self.assertEqual(
                [('floating', (), True, True)] * 2, [self.placed(number) for number in (1, 2)]
            )
            last = self.tick(agent, 5)
        self.assertEqual(
            [('placed', (0,), True, False), ('placed', (1,), True, False)],
            [self.placed(number) for number in (1, 2)],
        )
        self.assertEqual(['0-3', '4-7'], [tree.held() for tree in trees])
        self.assertEqual(2, last.starts_taken_over)
        self.assertEqual(2, sum('now placed on node' in text for text in logs.output))

    def test_a_guest_whose_hook_was_killed_is_placed_within_two_ticks(self):
        agent = self.open_agent()
        tree = self.launch(1)
        self.promise(1, 1, started=False, since_ns=START_NS)
        self.tick(agent, 0)
        self.assertEqual('', tree.held())
        self.assertEqual(1, self.tick(agent, 5).starts_taken_over)
        self.assertEqual('4-7', tree.held())
        self.assertEqual(('placed', (1,), True, False), self.placed(1))
        self.assertEqual(1, self.tick(agent, 10).starts_taken_over)

    def test_a_guest_that_libvirt_is_still_starting_is_not_placed(self):
        agent = self.open_agent()
        tree = self.launch(1)
        path = self.host.path('run/libvirt/qemu/%s.xml' % fake_host.name_of(1))
        with open(path) as file:
            text = file.read()
        self.host.write(path, text.replace("'>\n", "'>\n" + JOB, 1))
        self.promise(1, 1, started=False, since_ns=START_NS)
        for at_s in range(0, 60, 5):
            self.tick(agent, at_s)
        self.assertEqual(('', False), (tree.held(), self.placed(1)[2]))

    def test_no_guest_from_before_the_hook_or_placed_by_others_is_placed(self):
        for why, hooked, after, more in (
            ('no hook', False, True, {}),
            ('before the hook', True, False, {}),
            ('pinned', True, True, {'extra': domains.NUMA_NODES_1}),
            ('opted out', True, True, {'extra': domains.OPTED_OUT}),
        ):
            with self.subTest(why):
                if hooked:
                    self.install_hook()
                agent = self.open_agent()
                tree = self.launch(1, xml=fake_host.domain_xml(1, **more))
                self.began(1, after)
                for at_s in (0, 5, 10):
                    self.tick(agent, at_s)
                self.assertEqual(('', 0), (tree.held(), self.tick(agent, 15).starts_taken_over))
                with promises_file.locked(agent.options.host_options, self.root, 1.0) as draft:
                    draft.promises.pop(fake_host.uuid_of(1), None)

    def test_a_guest_that_the_operator_ignores_is_not_placed_nor_any_with_the_hook_off(self):
        for off in (False, True):
            self.host.configure('[hook]\nenabled = %s\n' % ('false' if off else 'true'))
            if not off:
                overrides.put(overrides.Override(fake_host.uuid_of(1), 'ignore', 'g'), self.root)
            agent = self.open_agent()
            tree = self.launch(1)
            self.promise(1, 1, started=False, since_ns=START_NS)
            for at_s in (0, 5, 10):
                self.tick(agent, at_s)
            self.assertEqual('', tree.held())
            overrides.drop(fake_host.uuid_of(1), self.root)

    def test_a_start_whose_cpusets_could_not_be_written_is_held_later(self):
        agent = self.open_agent()
        tree = self.launch(1)
        groups = self.host.path('proc/4001/cgroup')
        with open(groups) as file:
            right = file.read()
        for text in ('0::/elsewhere\n', right):
            self.host.write(groups, text)
            if text != right:
                self.call('start')
                self.call('started')
                self.assertEqual(('floating', (), True, True), self.placed(1))
        self.tick(agent, 0)
        self.tick(agent, 5)
        self.assertEqual(('placed', (1,), True, False), self.placed(1))
        self.assertEqual('4-7', tree.held())

    def test_a_guest_whose_hook_was_killed_floats_while_it_cannot_be_held(self):
        agent = self.open_agent()
        self.launch(1)
        self.host.write('proc/4001/cgroup', '0::/elsewhere\n')
        self.promise(1, 1, started=False, since_ns=START_NS)
        self.assert_floats_and_is_logged_once(agent)

    def assert_floats_and_is_logged_once(self, agent):
        with self.assertLogs(LOG, 'WARNING') as logs:
            for at_s in range(0, 61, 5):
                self.tick(agent, at_s)
        [message] = [text for text in logs.output if fake_host.name_of(1) in text]
        self.assertIn(
            'guest %s: its start could not be finished: /elsewhere is not a libvirt guest'
            % fake_host.name_of(1),
            message,
        )
        self.assertEqual(('floating', (), True, True), self.placed(1))

    def test_a_promise_of_a_bound_guest_that_cannot_be_held_is_kept(self):
        agent = self.open_agent()
        self.launch(1)
        self.host.write('proc/4001/cgroup', '0::/elsewhere\n')
        bound = self.promise(1, 1, bound=True, started=False, since_ns=START_NS)
        with self.assertLogs(LOG, 'WARNING'):
            for at_s in (0, 5, 10):
                self.tick(agent, at_s)
        self.assertEqual({bound.uuid: bound}, self.promises())

    def call(self, operation, number=1, **more):
        reader, writer = os.pipe()
        os.write(writer, fake_host.domain_xml(number, **more))
        os.close(writer)
        hook.run(fake_host.name_of(number), operation, reader, self.root)
        os.close(reader)

    def test_the_hook_and_the_agent_finish_a_start_alike(self):
        self.host.configure('[hook]\nbind = true\n')
        for why, extra, bytes_by_node in (
            ('plain', '', {0: MIB, 1: MIB}),
            ('memory stays elsewhere', domains.LOCKED, {0: 400 * MIB, 1: MIB}),
            ('placed by others since', domains.NUMA_NODES_1, {0: MIB, 1: MIB}),
            ('opted out since', domains.OPTED_OUT, {0: MIB, 1: MIB}),
        ):
            ends = []
            for number in (1, 2):
                tree = self.host.launch(
                    number, bytes_by_node, xml=fake_host.domain_xml(number, extra=extra)
                )
                self.set_guest_times(number, 0)
                self.promise(number, 1, started=False, since_ns=START_NS)
                if number == 1:
                    self.call('started', number, extra=extra)
                else:
                    agent = self.open_agent()
                    for at_s in (0, 5):
                        self.tick(agent, at_s)
                    agent.close()
                promise = self.promises()[fake_host.uuid_of(number)]
                ends.append((promise._replace(uuid='', name='', since_ns=0), tree.held()))
                self.host.end(number)
                with self.locked() as draft:
                    draft.promises.clear()
            with self.subTest(why):
                self.assertEqual(*ends)

    def test_a_start_that_cannot_be_recorded_is_logged_and_finished_later(self):
        agent = self.open_agent()
        tree = self.launch(1)
        self.promise(1, 1, started=False, since_ns=START_NS)
        self.tick(agent, 0)
        with (
            mock.patch.object(promises_file, 'update_running', side_effect=StateError('full')),
            self.assertLogs(LOG, 'WARNING') as logs,
        ):
            self.assertEqual(0, self.tick(agent, 5).starts_taken_over)
        self.assertIn('full; the guest is placed, but not recorded', ' '.join(logs.output))
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].started)
        self.assertEqual(1, self.tick(agent, 10).starts_taken_over)
        self.assertEqual('4-7', tree.held())

    def test_what_the_hook_has_recorded_since_the_promises_were_read_stays(self):
        """The hook has bound a guest at last, or the guest was started again."""
        for newer in ({'bound': True}, {'started': False, 'since_ns': START_NS + 1}):
            with self.subTest(newer):
                agent = self.open_agent()
                self.launch(1)
                self.promise(1, 1, started=False, since_ns=START_NS)
                tick = self.tick(agent, 0)
                promise = self.promise(1, 1, **{'since_ns': START_NS, **newer})
                agent._keeper.keep(tick._replace(now=tick.now._replace(monotonic_ns=5 * SECOND)))
                self.assertEqual({promise.uuid: promise}, self.promises())
                self.assertEqual(0, agent._keeper.starts_taken_over)


class FetchTest(RebalancingCase):
    """Memory is also fetched while rebalancing is off."""

    NUMBERS = (1,)

    def test_memory_on_another_node_is_fetched_once(self):
        self.put_memory_elsewhere()
        agent = self.open_agent(opts.OFF)
        self.tick(agent, 0)
        self.finish_move(agent)
        self.assertEqual({0}, set(self.memory(1).nodes))
        self.assertEqual(1, agent._executor.totals.ended['fetch', 'made'])
        self.put_memory_elsewhere()
        self.tick(agent, 5)
        self.finish_move(agent)
        self.assertEqual({1}, set(self.memory(1).nodes))

    def test_memory_of_a_guest_that_the_hook_has_missed_is_fetched_once_it_is_placed(self):
        self.put_memory_elsewhere()
        uuid = fake_host.uuid_of(1)
        agent = self.open_agent(opts.OFF)
        with promises_file.locked(agent.options.host_options, self.root, 1.0) as draft:
            promise = draft.promises[uuid]
            draft.put(promising.as_floating(promise)._replace(missed=True))
        with mock.patch.object(files, 'boottime_ns', return_value=START_NS):
            for at_s in (0, 5, 10):
                self.tick(agent, at_s)
                self.finish_move(agent)
        (node,) = self.promises()[uuid].mem_nodes
        self.assertEqual({node}, self.nodes())
        self.assertEqual({('fetch', 'made'): 1}, agent._executor.totals.ended)

    def nodes(self):
        return set(self.memory(1).nodes)

    def test_memory_is_fetched_after_a_pause_that_ended_its_fetch(self):
        for begun in (False, True):
            with self.subTest(begun=begun):
                self.put_memory_elsewhere()
                agent = self.open_agent(opts.AUTO)
                self.tick(agent, 0)
                if begun:
                    agent.step()
                pause.begin(self.root)
                self.tick(agent, 5)
                pause.end(self.root)
                self.assertIsNone(agent.step())
                self.assertEqual({1}, self.nodes())
                self.tick(agent, 10)
                self.finish_move(agent)
                self.assertEqual({0}, self.nodes())

    def test_a_fetch_that_failed_is_not_tried_again(self):
        self.put_memory_elsewhere()
        memory = self.memory(1)
        memory.pinned = set(range(len(memory.nodes)))
        agent = self.open_agent(opts.OFF)
        for at_s in (0, 5):
            self.tick(agent, at_s)
            self.finish_move(agent)
        self.assertEqual({('fetch', 'taken_back'): 1}, agent._executor.totals.ended)

    def put_memory_elsewhere(self, **promised):
        memory = self.memory(1)
        memory.nodes[:] = [1] * len(memory.nodes)
        memory.write_files()
        promise = self.promises()[fake_host.uuid_of(1)]._replace(
            **{'since_ns': START_NS, **promised}
        )
        with self.locked() as draft:
            draft.put(promise)

    def test_memory_of_a_guest_that_ran_before_its_promise_is_not_fetched(self):
        memory = self.memory(1)
        memory.nodes[:] = [1] * len(memory.nodes)
        memory.write_files()
        memory.tree.set_all('0-3')
        services.write_stat(self.root, 4001, 1)
        with self.locked() as draft:
            draft.promises.pop(fake_host.uuid_of(1), None)
        agent = self.open_agent(opts.OFF)
        with mock.patch.object(files, 'boottime_ns', return_value=START_NS):
            self.tick(agent, 0)
        self.assertIsNone(agent.step())
        self.assertEqual('placed', self.promises()[fake_host.uuid_of(1)].origin)
        self.assertEqual({1}, self.nodes())


class FetchLimitTest(RebalancingCase):
    def test_memory_of_several_guests_is_fetched_within_the_limit_of_each_tick(self):
        guest_bytes = PAGES * PAGE_BYTES
        for limit_bytes, guests_fetched in (
            (1, [1, 2, 3]),  # more than the limit is fetched alone
            (2 * guest_bytes, [2, 3]),
            (3 * guest_bytes, [3]),
        ):
            with self.subTest(limit_bytes=limit_bytes):
                for number in self.NUMBERS:
                    memory = self.memory(number)
                    memory.nodes[:] = [1] * PAGES
                    memory.write_files()
                    self.promise(number, 0, since_ns=START_NS)
                agent = self.open_agent(
                    opts.OFF, rebalance_options=RebalanceOptions(bytes_per_tick=limit_bytes)
                )
                for tick_number, count in enumerate(guests_fetched):
                    self.tick(agent, 5 * tick_number)
                    self.finish_move(agent)
                    self.assertEqual({('fetch', 'made'): count}, agent._executor.totals.ended)
