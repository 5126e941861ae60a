# SPDX-License-Identifier: Apache-2.0
"""Test single moves: of CPUs with memory, CPUs alone, memory alone, and obstacles."""

import contextlib
import errno
import logging
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves import executor, move_promises
from nova_numa_pmc.state import history, state_files
from tests.cases.agent import START_NS
from tests.cases.rebalancing import PAGES, RebalancingCase
from tests.fixtures import domains, fake_host, sysfs
from tests.fixtures.clock import Clock
from tests.fixtures.guest_memory import GuestMemory

LOG = logging.getLogger('nova_numa_pmc.moves.executor')


class MovingTest(RebalancingCase):
    def setUp(self):
        super().setUp()
        self.promise(2, 1)
        self.memory(2).nodes = [1] * PAGES
        self.memory(2).write_files()
        self.clock = Clock()
        self.moving = executor.MoveExecutor(
            opts.AgentOptions(host_options.read('/dev/null')),
            self.root,
            LOG,
            clock=self.clock,
            kernel=self.kernel,
        )
        self.tick(self.open_agent(opts.OFF), 0)  # holds each guest to its place

    def enqueue(self, kind, number, before, after, memory=True):
        move = plan_records.Move(
            kind,
            fake_host.uuid_of(number),
            fake_host.name_of(number),
            before,
            after,
            after if memory else (),
            0,
        )
        self.moving.enqueue(plan_records.Plan((move,)), self.promises())

    def make(self, *planned, **more):
        self.enqueue(*planned, **more)
        return self.end()

    def move(self):
        return self.make(plan_records.MOVE, 1, (0,), (1,))

    def end(self):
        for _ in range(1000):
            wait_s = self.moving.step()
            if wait_s is None:
                return self.places()
            self.clock.wait(wait_s)
        raise AssertionError('it does not end')

    def test_a_moved_guest_gets_one_cache_of_a_node_and_comes_home_to_its(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2), l3s=['0-1', '2-3', '4-5', '6-7'])
        self.promise(1, 0, l3_cpus=(2, 3))
        moved = self.make(plan_records.WIDEN, 1, (0,), (0, 1), memory=False)
        self.assertEqual('0-7', moved[1][1])
        moved = self.make(plan_records.NARROW, 1, (0, 1), (0,), memory=False)
        self.assertEqual('2-3', moved[1][1])
        self.promise(2, 1, l3_cpus=(4, 5))
        moved = self.move()
        self.assertEqual(((1,), '6-7', {1}), moved[1])
        self.assertEqual((6, 7), self.promises()[fake_host.uuid_of(1)].l3_cpus)

    def test_a_move_is_written_down_before_anything_else_is(self):
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        self.moving.step()
        (begun,), _ = history.read(self.root)
        self.assertEqual(
            (history.BEGUN, (0,), (1,)),
            (begun.result, begun.before.cpu_nodes, begun.after.cpu_nodes),
        )
        while self.moving.step() is not None:
            pass
        (ended,), _ = history.read(self.root)
        self.assertEqual((begun.id, history.DONE), (ended.id, ended.result))

    def test_nothing_is_written_down_while_the_promises_are_locked(self):
        """Starts of guests wait for the promises, and must not wait for a disk."""
        kept = []

        def record(entry):
            with self.locked(0.0):
                kept.append((entry.id, entry.result))

        self.moving = executor.MoveExecutor(
            opts.AgentOptions(host_options.read('/dev/null')),
            self.root,
            LOG,
            clock=lambda: 0.0,
            on_history_entry=record,
            kernel=self.kernel,
        )
        self.move()
        (first, begun), (second, ended) = kept
        self.assertEqual((first, history.BEGUN, history.DONE), (second, begun, ended))

    def test_cpus_stay_with_a_promise_that_cannot_be_undone(self):
        self.memory(1).pinned = set(range(PAGES))
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        self.moving.step()
        with (
            mock.patch.object(move_promises, '_UNDO_LOCK_TIMEOUT_S', 0.0),
            self.locked(),
            self.assertLogs(LOG, 'WARNING') as logs,
        ):
            moved = self.end()
        self.assertIn('locked by another process', logs.output[0])
        self.assertIn('not fully undone: %s: ' % fake_host.name_of(1), logs.output[-1])
        self.assertEqual(((1,), '4-7', {0}), moved[1])
        (entry,), _ = history.read(self.root)
        self.assertEqual(history.PARTLY, entry.result)
        self.assertEqual({(plan_records.MOVE, executor.MADE): 1}, self.moving.totals.ended)
        self.tick(self.open_agent(opts.OFF), 5)
        self.assertEqual('4-7', self.places()[1][1])

    def test_a_move_is_undone_after_a_burst_of_starts_has_released_the_promises(self):
        self.memory(1).pinned = set(range(PAGES))
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        self.moving.step()
        clock, starts = Clock(), contextlib.ExitStack()
        begun_s = clock.now_s

        def sleep(seconds):
            clock.wait(seconds)
            if clock.now_s > begun_s + 4:
                starts.close()

        times = mock.Mock(monotonic=clock, sleep=sleep)
        with starts, mock.patch.object(state_files, 'time', times):
            starts.enter_context(self.locked())
            with self.assertLogs(LOG, 'WARNING') as logs:
                moved = self.end()
        self.assertIn(':undone: %s: ' % fake_host.name_of(1), logs.output[-1])
        self.assertEqual(self.HOME, moved[1])
        (entry,), _ = history.read(self.root)
        self.assertEqual(history.TAKEN_BACK, entry.result)

    def test_pending_moves_can_be_given_up_while_the_current_one_goes_on(self):
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        self.enqueue(plan_records.MOVE, 3, (0,), (1,))
        self.moving.step()
        self.moving.clear_queue()
        self.assertTrue(self.moving.busy)
        moved = self.end()
        self.assertEqual((self.AWAY, self.HOME), (moved[1], moved[3]))

    def test_a_guest_with_a_group_that_others_pinned_is_not_moved(self):
        tree = self.tree(1)
        tree.write_file(tree.vcpus[0] + '/cpuset.cpus', '2\n')
        with self.assertLogs(LOG, 'WARNING') as logs:
            moved = self.move()
        self.assertIn('which nova-numa-pmc did not write', logs.output[0])
        self.assertEqual(((0,), '0-3 2 0-3', {0}), moved[1])

    def fill(self, node):
        with self.locked() as draft:
            draft.put(model.Promise('new', 'new', (node,), (node,), 1, 1 << 50, since_ns=START_NS))

    def test_a_move_without_room_left_by_a_start_is_refused(self):
        self.fill(1)
        with self.assertLogs(LOG, 'WARNING') as logs:
            moved = self.move()
        self.assertIn(':not moved: %s: ' % fake_host.name_of(1), logs.output[0])
        self.assertIn('no room left', logs.output[0])
        self.assertEqual(executor.MoveTotals({('move', 'refused'): 1}), self.moving.totals)
        self.assertEqual(self.HOME, moved[1])

    def assert_refused(self, level, why):
        """Assert that guest 1 is not moved, for a reason that its log message contains."""
        tree = self.tree(1)
        before = self.promises(), tree.contents()
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        with self.assertLogs(LOG, level) as logs:
            self.moving.step()
        [message] = logs.output
        self.assertTrue(message.startswith('%s:%s:not moved: ' % (level, LOG.name)), message)
        self.assertIn('guest %s: %s' % (fake_host.name_of(1), why), message)
        self.assertEqual(before, (self.promises(), tree.contents()))
        (entry,), _ = history.read(self.root)
        self.assertEqual(history.REFUSED, entry.result)

    def test_a_guest_that_has_ended_before_its_move_is_not_moved(self):
        self.host.end(1)
        self.assert_refused('INFO', 'ended before it was moved')

    def test_a_guest_without_a_promise_is_not_moved(self):
        with self.locked() as draft:
            draft.promises.pop(fake_host.uuid_of(1), None)
        self.assert_refused('WARNING', 'it has no promise')

    def test_a_guest_that_may_use_no_cpu_of_the_other_node_is_not_moved(self):
        xml = fake_host.domain_xml(1, cpuset='0-3')
        domains.write_status(self.root, fake_host.name_of(1), xml, 4001)
        self.assert_refused('WARNING', 'none of the CPUs that it may use is on these nodes')

    def widened_nodes(self):
        return self.promises()[fake_host.uuid_of(1)].widened_nodes

    def test_a_widened_guest_is_held_to_its_wider_place_until_it_goes_home(self):
        moved = self.make(plan_records.WIDEN, 1, (0,), (0, 1), memory=False)
        self.assertEqual(((0,), '0-7', {0}), moved[1])
        self.assertEqual((0, 1), self.widened_nodes())
        moved = self.make(plan_records.NARROW, 1, (0, 1), (0,), memory=False)
        self.assertEqual((self.HOME, ()), (moved[1], self.widened_nodes()))

    def test_a_widened_guest_whose_move_is_undone_is_wide_again(self):
        self.make(plan_records.WIDEN, 1, (0,), (0, 1), memory=False)
        self.memory(1).pinned = set(range(PAGES))
        self.enqueue(plan_records.MOVE, 1, (0, 1), (1,))
        self.moving.step()
        self.assertEqual((), self.widened_nodes())
        with self.assertLogs(LOG, 'WARNING'):
            moved = self.end()
        self.assertEqual(((0,), '0-7', {0}), moved[1])
        self.assertEqual((0, 1), self.widened_nodes())

    def test_a_guest_that_libvirt_works_on_is_not_moved_or_goes_back(self):
        for batches in (0, 1):
            self.begin_job(1, '')
            self.enqueue(plan_records.MOVE, 1, (0,), (1,))
            if batches:
                self.moving.step()
            self.begin_job(1, 'snapshot')
            with self.assertLogs(LOG, 'WARNING') as logs:
                self.assertEqual(self.HOME, self.end()[1])
            self.assertIn('a libvirt job is running (snapshot)', logs.output[0])

    def large(self, number, node=0):
        """Give a guest so much memory that it is moved in several batches."""
        memory = GuestMemory(self.tree(number), [node] * (20 << 8))
        self.kernel.memories[4000 + number] = memory
        return memory

    def begin_batches(self):
        """Begin the move of guest 1, up to its first batch."""
        memory = self.large(1)
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        while memory.nodes.count(1) == 0:
            self.moving.step()
        return memory.nodes.count(1)

    def test_a_guest_that_an_operator_pins_in_the_middle_of_its_move_is_moved_no_further(self):
        for extra, pinned in (
            ("  <cputune><vcpupin vcpu='0' cpuset='0'/></cputune>\n", '0'),
            ("  <numatune><memory mode='strict' nodeset='0'/></numatune>\n", None),
        ):
            with self.subTest(extra):
                moved_pages = self.begin_batches()
                xml = fake_host.domain_xml(1, extra=extra)
                domains.write_status(self.root, fake_host.name_of(1), xml, 4001)
                tree = self.tree(1)
                if pinned:
                    tree.write_file(tree.vcpus[0] + '/cpuset.cpus', pinned + '\n')
                with self.assertLogs(LOG, 'WARNING') as logs:
                    self.end()
                self.assertIn('placed by others', logs.output[0])
                self.assertEqual(moved_pages, self.memory(1).nodes.count(1))
                self.assertEqual((0,), self.promises()[fake_host.uuid_of(1)].cpu_nodes)
                if pinned:
                    self.assertEqual('0', tree.read(tree.vcpus[0], 'cpuset.cpus').strip())
                (entry,) = history.read(self.root)[0][-1:]
                self.assertEqual(history.SPLIT, entry.result)
                self.begin_job(1, '')
                tree.set_all('0-3')

    def test_no_guest_is_moved_while_another_one_is_migrated(self):
        for job in ('migration out', 'migration in'):
            with self.subTest(job):
                self.begin_job(2, '')
                moved_pages = self.begin_batches()
                self.enqueue(plan_records.MOVE, 3, (0,), (1,))
                self.begin_job(2, job)
                with self.assertLogs(LOG, 'WARNING') as logs:
                    moved = self.end()
                self.assertIn('is being migrated (%s)' % job, logs.output[0])
                self.assertEqual(moved_pages, self.memory(1).nodes.count(1))
                self.assertEqual((self.HOME[:2], self.HOME), (moved[1][:2], moved[3]))
                self.assertIn(fake_host.uuid_of(3), self.moving.pop_interrupted())

    def test_a_move_that_the_history_cannot_record_is_not_begun(self):
        before = self.promises(), self.tree(1).contents()
        with mock.patch.object(
            history, 'append', side_effect=OSError(errno.ENOSPC, 'No space left on device')
        ):
            with self.assertLogs(LOG, 'WARNING') as logs:
                moved = self.move()
        self.assertIn('the history cannot be written: ', logs.output[0])
        self.assertEqual(self.HOME, moved[1])
        self.assertEqual(before, (self.promises(), self.tree(1).contents()))

    def test_a_guest_that_is_busy_when_its_turn_comes_is_named_for_a_later_fetch(self):
        self.enqueue(plan_records.FETCH, 1, (0,), (0,))
        self.begin_job(1, 'snapshot')
        with self.assertLogs(LOG, 'WARNING'):
            self.end()
        self.assertEqual({fake_host.uuid_of(1)}, self.moving.pop_interrupted())
        self.assertEqual(executor.MoveTotals({('fetch', 'refused'): 1}), self.moving.totals)

    def test_a_fetch_moves_memory_alone(self):
        self.memory(1).nodes = [1] * PAGES
        self.memory(1).write_files()
        with self.assertLogs(LOG, 'INFO') as logs:
            moved = self.make(plan_records.FETCH, 1, (0,), (0,))
        self.assertEqual(self.HOME, moved[1])
        self.assertIn(': fetch: memory to node 0, 1 MiB in ', logs.output[0])

    def test_a_full_node_may_take_back_what_is_promised_there(self):
        self.fill(0)
        self.memory(1).nodes = [1] * PAGES
        self.memory(1).write_files()
        moved = self.make(plan_records.FETCH, 1, (0,), (0,))
        self.assertEqual(self.HOME, moved[1])
        self.assertEqual([], self.moving.not_begun)

    def test_a_move_that_was_dropped_was_not_begun(self):
        self.enqueue(plan_records.MOVE, 1, (0,), (1,))
        self.moving.clear_queue()
        self.assertEqual([fake_host.uuid_of(1)], [move.uuid for move in self.moving.not_begun])

    def test_a_move_is_kept_where_half_of_the_memory_followed(self):
        for pinned, kept in ((PAGES // 3, True), (2 * PAGES // 3, False)):
            self.memory(1).nodes = [0] * PAGES
            self.memory(1).pinned = set(range(pinned))
            self.memory(1).write_files()
            with self.assertLogs(LOG, 'INFO'):
                moved = self.move()
            self.assertEqual(kept, moved[1][:2] == self.AWAY[:2])
            if kept:
                self.promise(1, 0)
                self.tick(self.open_agent(opts.OFF), 0)

    def test_a_start_that_holds_the_lock_goes_first(self):
        with self.locked():
            with self.assertLogs(LOG, 'WARNING'):
                moved = self.move()
        self.assertEqual(self.HOME, moved[1])

    def test_a_move_is_undone_after_a_bug_while_its_cpus_are_written(self):
        self.kernel.write = mock.Mock(side_effect=KeyError)
        with self.assertLogs(LOG, 'WARNING') as logs:
            moved = self.move()
        self.assertEqual(self.HOME[:2], moved[1][:2])
        self.assertIs(KeyError, logs.records[0].exc_info[0])
        (entry,), _ = history.read(self.root)
        self.assertEqual(history.TAKEN_BACK, entry.result)
        self.assertEqual(executor.MoveTotals({('move', 'taken_back'): 1}), self.moving.totals)

    def test_a_bug_while_a_move_is_undone_leaves_it_partly_made(self):
        self.moving.move_promises.undo = mock.Mock(side_effect=KeyError('x'))
        self.kernel.memories[4001].before_move = mock.Mock(side_effect=ZeroDivisionError)
        with self.assertLogs(LOG, 'WARNING') as logs:
            moved = self.move()
        self.assertEqual(self.AWAY[:2], moved[1][:2])
        self.assertEqual(
            [KeyError, ZeroDivisionError], [record.exc_info[0] for record in logs.records]
        )
        (entry,), _ = history.read(self.root)
        self.assertEqual((history.PARTLY, 'ZeroDivisionError: '), (entry.result, entry.why))

    def test_a_move_killed_anywhere_leaves_guests_held_as_recorded(self):
        killed = 0
        for kill_at in range(40):
            with self.subTest(kill_at=kill_at):
                if not self.assert_held_after_a_kill(kill_at, lambda case: case.move()):
                    break
                killed += 1
        self.assertLess(3, killed)
