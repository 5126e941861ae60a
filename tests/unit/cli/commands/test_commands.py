# SPDX-License-Identifier: Apache-2.0
"""Test pin, pause, status, history and top --plan on a host with an uneven load."""

import json
import os
import shutil
import time
from unittest import mock

from nova_numa_pmc.cli import arguments
from nova_numa_pmc.cli.context import UnknownGuest
from nova_numa_pmc.conf import opts
from nova_numa_pmc.exceptions import CpusetError, OptionsError, PageMoveError
from nova_numa_pmc.host import files
from nova_numa_pmc.state import move_lock, overrides, pause, promises_file
from tests.cases.operating import OperatingCase
from tests.cases.rebalancing import PAGES
from tests.fixtures import domains, fake_host, sysfs
from tests.fixtures.guest_memory import GuestMemory


class PinnedTest(OperatingCase):
    """Threads that were pinned since their guest was placed."""

    PIN = "  <cputune><vcpupin vcpu='0' cpuset='6'/><emulatorpin cpuset='5'/></cputune>\n"

    def pin(self, cpuset=None):
        """Pin as virsh vcpupin and emulatorpin do, and the other vCPU by hand."""
        self.host.launch(1, xml=fake_host.domain_xml(1, cpuset=cpuset, extra=self.PIN))
        self.hold(1, '0-3')
        tree = self.tree(1)
        for directory, cpus in zip(tree.children, '562'):
            tree.write(os.path.join(directory, 'cpuset.cpus'), cpus)

    def test_pinned_threads_are_shown(self):
        for cpuset in (None, '0-6'):
            with self.subTest(cpuset=cpuset):
                self.pin(cpuset)
                shown = self.shown(1)
                self.assertEqual({'emulator': '5', 'vcpu0': '6', 'vcpu1': '2'}, shown['pinned'])
                self.assertIn('vcpu0 on 6', shown['why'])


class PinTest(OperatingCase):
    def whats(self):
        return {uuid: override.kind for uuid, override in overrides.read(self.root)[0].items()}

    def test_pin_keeps_a_guest_where_it_is(self):
        code, answer = self.run_json('pin', '1')  # libvirt's id
        self.assertEqual((arguments.OK, 'pin', None), (code, answer['kind'], answer['outcome']))
        self.assertEqual({answer['uuid']: 'pin'}, self.whats())

    def test_pin_moves_a_guest_to_the_node_asked_for(self):
        code, _, _ = self.run_command('pin', fake_host.uuid_of(2), '--node', '1')
        self.assertEqual((arguments.OK, [2]), (code, self.moved()))
        self.assertEqual({fake_host.uuid_of(2): 'pin'}, self.whats())
        self.assertEqual('pin', self.history_entries()[0].mover)
        self.assertEqual(
            arguments.OK, self.run_command('pin', fake_host.uuid_of(2), '--node', '1')[0]
        )
        self.assertEqual(1, len(self.history_entries()))  # it is already there
        self.assertEqual(
            arguments.OK, self.run_command('pin', fake_host.uuid_of(2), '--node', '0')[0]
        )
        self.assertEqual([], self.moved())

    def test_a_guest_with_a_new_vcpu_that_is_not_held_yet_is_moved(self):
        tree = self.tree(2)
        tree.write(os.path.join(tree.vcpus[1], 'cpuset.cpus'), '0-7')
        self.run_command('pin', fake_host.name_of(2), '--node', '1')
        self.assertEqual({'4-7'}, {tree.read(each, 'cpuset.cpus') for each in tree.children})

    def test_without_an_agent_a_guest_is_moved_to_the_cpus_that_were_planned_with(self):
        self.host.launch(9, xml=fake_host.domain_xml(9, extra=domains.DEDICATED))
        self.run_command('pin', fake_host.name_of(2), '--node', '1')
        self.assertEqual('4-5,7', self.tree(2).held())

    def test_pin_fetches_memory_that_lies_elsewhere(self):
        """A move was ended, or memory has spilled; the promise already names the node."""
        tree = self.tree(1)
        for mib, expected in ((4, []), (24, [('pin', 'done', 24 << 20)])):
            with self.subTest(mib=mib):
                pages = mib << 20 >> 12
                memory = GuestMemory(tree, [0] * PAGES + [1] * pages)
                self.kernel.memories[4001] = memory
                code, _, _ = self.run_command('pin', fake_host.name_of(1), '--node', '0')
                self.assertEqual(
                    (arguments.OK, expected),
                    (
                        code,
                        [
                            (entry.mover, entry.result, entry.moved_bytes)
                            for entry in self.history_entries()
                        ],
                    ),
                )
                self.assertEqual(0 if expected else pages, memory.nodes.count(1))
                self.assertEqual(((0,), '0-3'), self.places()[1][:2])

    def test_pin_to_a_node_without_memory_moves_no_memory(self):
        tree = self.tree(1)
        self.promise(1, 1)
        self.hold(1, '4-7')
        GuestMemory(tree, [0] * (24 << 8))
        self.host.write(
            'sys/devices/system/node/node1/meminfo',
            'Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n',
        )
        self.assertEqual(
            arguments.OK, self.run_command('pin', fake_host.name_of(1), '--node', '1')[0]
        )
        self.assertEqual([], self.history_entries())

    def test_pin_where_the_guest_cannot_be_is_refused(self):
        with self.assertRaisesRegex(PageMoveError, 'nodes that have some: 0, 1'):
            self.run_command('pin', fake_host.name_of(1), '--node', '7')
        self.memory(1).pinned = set(range(PAGES))
        with self.assertRaisesRegex(PageMoveError, 'not pinned: most of its memory stays'):
            self.run_command('pin', fake_host.name_of(1), '--node', '1')
        self.assertEqual({}, self.whats())

    def test_pin_to_a_node_with_too_few_cpus_is_refused(self):
        self.host.launch(1, xml=fake_host.domain_xml(1, vcpus=6))
        with self.assertRaisesRegex(PageMoveError, 'has 6 vCPUs, but may use only 4'):
            self.run_command('pin', fake_host.name_of(1), '--node', '1')
        self.assertEqual({}, self.whats())

    def test_the_override_of_a_guest_that_does_not_run_is_ended_by_its_name(self):
        self.run_command('pin', '--ignore', fake_host.name_of(1))
        self.end(1)
        self.assertEqual({fake_host.uuid_of(1): 'ignore'}, self.whats())
        self.assertIn('not running', self.run_command('status')[1])
        self.assertIn('no longer', self.run_command('pin', '--off', fake_host.name_of(1))[1])
        self.assertEqual({}, self.whats())
        self.assertIn('neither', self.run_command('pin', '--off', fake_host.name_of(2))[1])
        with self.assertRaises(UnknownGuest):
            self.run_command('pin', 'no-such')

    def test_ignore_with_release_lets_a_guest_float(self):
        self.run_command('pin', '--ignore', fake_host.name_of(1))
        self.tick(self.open_agent(opts.OFF), 0)
        self.run_command('pin', '--ignore', fake_host.name_of(2), '--release')
        places = self.places()
        self.assertEqual(((), '0-7', {0}), places[2])
        self.tick(self.open_agent(opts.OFF), 0)
        self.assertEqual((places[2], '0-3'), (self.places()[2], self.places()[3][1]))

    def test_a_released_guest_gets_only_the_cpus_that_it_may_use_and_keeps_its_pins(self):
        pins = "<cputune><vcpupin vcpu='0' cpuset='2'/></cputune>"
        tree = self.host.launch(1, xml=fake_host.domain_xml(1, cpuset='0-3,6', extra=pins))
        self.kernel.memories[tree.pid] = GuestMemory(tree, [0] * PAGES)
        self.hold(1, '0-3')
        tree.write(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '2')
        self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.assertEqual(
            ['0-3,6', '2', '0-3,6'],
            [tree.read(directory, 'cpuset.cpus') for directory in tree.children],
        )

    def test_the_lock_of_the_promises_is_free_while_a_guest_is_released(self):
        taken, write_file = [], self.kernel.write

        def write(path, text):
            with self.locked(0.1):
                taken.append(path)
            write_file(path, text)

        with mock.patch.object(self.kernel, 'write', write):
            self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.assertTrue(taken)

    def test_a_guest_whose_promise_was_lost_is_released_too(self):
        os.unlink(os.path.join(self.directory, promises_file.FILE))
        self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.assertEqual('0-7', self.tree(1).held())

    def test_a_release_that_failed_can_be_repeated(self):
        def fail(path, text):
            raise CpusetError('read-only')

        with mock.patch.object(self.kernel, 'write', fail), self.assertRaises(CpusetError):
            self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.assertEqual(((), '0-7'), self.places()[1][:2])

    def test_a_release_is_for_a_guest_that_is_ignored(self):
        code, _, _ = self.run_command('pin', fake_host.name_of(1), '--release')
        self.assertEqual((64, {}), (code, self.whats()))

    def test_the_override_of_a_guest_that_has_ended_is_removed_by_its_name(self):
        for number in (1, 2):
            self.run_command('pin', fake_host.name_of(number))
        self.end(2)
        self.run_command('pin', fake_host.name_of(2), '--off')
        self.assertEqual({fake_host.uuid_of(1): 'pin'}, self.whats())


class PauseTest(OperatingCase):
    def test_status_shows_a_pause_with_its_reason(self):
        self.run_command('pause', '--reason', 'firmware')
        self.assertEqual('firmware', pause.read(self.root).reason)
        self.assertIn('paused: firmware', self.run_command('status')[1])
        self.assertEqual('firmware', self.run_json('status')[1]['agent']['paused']['reason'])
        self.assertEqual((0, {'was_paused': True}), self.run_json('pause', '--off'))
        self.assertEqual((0, {'was_paused': False}), self.run_json('pause', '--off'))

    def test_pause_works_and_ends_where_an_option_is_wrong(self):
        self.host.configure('[agent]\nrebalance = maybe\n')
        self.assertEqual(arguments.OK, self.run_command('pause')[0])
        self.assertTrue(pause.read(self.root))
        self.run_command('pin', '--ignore', fake_host.name_of(1), '--release')
        self.assertEqual(arguments.OK, self.run_command('pause', '--off')[0])
        with self.assertRaisesRegex(OptionsError, 'rebalance'):
            self.run_command('status')


class StatusTest(OperatingCase):
    def test_status_writes_a_page_with_each_guest_and_why_it_is_there(self):
        self.tick(self.open_agent(opts.OFF), 0)
        path = self.host.path('status.html')
        self.assertEqual(arguments.OK, self.run_command('status', '--html', path)[0])
        with open(path, encoding='utf-8') as file:
            html = file.read()
        for text in (
            '>node 0<',
            '>node 1<',
            fake_host.name_of(3),
            'placed ',
            'agent: not running',
        ):
            self.assertIn(text, html)

    def test_status_names_a_command_that_does_not_go_on_with_its_moves(self):
        long_ago_ns = files.boottime_ns() - int(2e9 * move_lock.LEASE_S)
        with move_lock.MoveLock(self.directory, 'apply', lambda: long_ago_ns):
            self.assertIn('suspended or hangs', ' '.join(self.run_command('status')[1:]))

    def test_status_reports_memory_that_is_not_for_guests(self):
        sysfs.build_sysfs(self.root, [*sysfs.equal_nodes(2), sysfs.FakeNode(2, '', 96 << 30)])
        self.assertIn(
            'node 2: its memory (96G) is not for guests: it has no CPUs',
            self.run_command('status')[1],
        )
        node = self.run_json('status')[1]['nodes'][2]
        self.assertEqual(
            (True, 96 << 30, 0),
            (node['memory_withheld'], node['memory_bytes'], node['capacity_bytes']),
        )

    def test_the_cores_of_nodes_in_status_are_those_of_its_pressure(self):
        """A part of a node's CPU time was stolen from the host."""
        self.assertEqual(
            [4.0, 4.0], [node['capacity_cores'] for node in self.run_json('status')[1]['nodes']]
        )
        agent = self.open_agent(opts.OFF)
        for ago_s in (10, 5, 0):
            at_s = 10 - ago_s
            stolen = {cpu: at_s / 2 if cpu < 4 else 0 for cpu in range(8)}
            self.host.set_cpu_times(dict.fromkeys(range(8), 0), stolen_by_cpu=stolen)
            self.tick(agent, at_s, realtime_s=time.time() - ago_s)
        stolen_node, other = self.run_json('status')[1]['nodes']
        self.assertEqual((2.0, 4.0), (stolen_node['capacity_cores'], other['capacity_cores']))

        def wait(seconds):
            self.now_s += seconds
            stolen = {cpu: 6 if cpu < 4 else 0 for cpu in range(8)}
            self.host.set_cpu_times(dict.fromkeys(range(8), 0), stolen_by_cpu=stolen)

        self.wait = wait
        stolen_node, other = self.run_json('status', '--interval', '5')[1]['nodes']
        self.assertEqual((3.2, 4.0), (stolen_node['capacity_cores'], other['capacity_cores']))

    def test_status_says_that_a_guest_with_a_reset_cpuset_is_elsewhere(self):
        self.hold(1, '4-7')
        self.assertIn('not on node 0', self.run_command('status')[1])

    def test_status_says_what_moved_a_guest_and_why(self):
        self.run_command('apply', '--yes')
        [number] = self.moved()
        why = self.shown(number)['why']
        self.assertIn('moved by apply', why)
        self.assertIn('waiting for CPUs', why)

    def test_status_shows_the_memory_of_a_guest_on_huge_pages(self):
        xml = fake_host.domain_xml(1, extra=domains.HUGE_PAGES_2M)
        self.host.launch(1, {0: 5 << 20, 1: 0}, xml=xml)
        self.promise(1, 0)

        def shown():
            guest = self.shown(1)
            return guest['bytes_by_node'], guest['home_ratio']

        self.assertEqual((None, None), shown())
        self.host.write(
            'proc/4001/numa_maps', '7f12 default huge N0=5 N1=5 kernelpagesize_kB=2048\n'
        )
        self.assertEqual(({'0': 15 << 20, '1': 10 << 20}, 0.6), shown())

    def test_status_lists_no_running_guest_as_not_running_though_it_cannot_be_read(self):
        for number in (1, 2):
            self.run_command('pin', '--ignore', fake_host.uuid_of(number))
        overrides.put(overrides.Override(fake_host.uuid_of(9), 'pin', 'gone'), self.root)
        os.unlink(self.host.path('run/libvirt/qemu/%s.xml' % fake_host.name_of(2)))
        self.host.write('run/libvirt/qemu/%s.xml' % fake_host.name_of(1), '<damaged')
        absent = [override['uuid'] for override in self.run_json('status')[1]['not_running']]
        self.assertEqual([fake_host.uuid_of(number) for number in (2, 9)], absent)

    def test_status_shows_what_guests_have_wanted(self):
        agent = self.open_agent(opts.OFF)
        for at_s in (0, 60, 120, 180):
            self.load_node_0(at_s)
            tick = self.tick(agent, at_s)
        self.assertEqual({}, self.run_json('status')[1]['guests'][0]['lasting_demand_cores'])
        agent.close()
        (_, answer), (_, out, _) = self.run_json('status'), self.run_command('status')
        wanted = tick.sample.guests[0].cores + tick.sample.guests[0].waiting_cores
        for horizon in ('minutes', 'day'):
            demand = answer['guests'][0]['lasting_demand_cores'][horizon]
            self.assertAlmostEqual(wanted, demand, places=3)
        self.assertIn('%.1f/' % wanted, out)

    def test_status_shows_the_rest_if_files_or_groups_cannot_be_read(self):
        shutil.rmtree(self.host.path('sys/fs/cgroup/' + self.tree(2).path))
        for name in ('history', 'demand'):
            self.host.write('var/lib/nova-numa-pmc/' + name, 'no history\n')
        _, answer = self.run_json('status')
        shown = {guest['uuid']: guest for guest in answer['guests']}
        self.assertIsNone(shown[fake_host.uuid_of(2)]['held_nodes'])
        self.assertEqual([0], shown[fake_host.uuid_of(1)]['held_nodes'])
        self.assertIn(fake_host.name_of(2), self.run_command('status')[1])

    def test_status_names_guests_with_an_override_that_do_not_run(self):
        self.run_command('pin', fake_host.name_of(2))
        self.end(2)
        self.assertIn('not running: ' + fake_host.name_of(2), self.run_command('status')[1])

    def test_status_says_what_was_counted_in_its_interval(self):
        _, out, _ = self.run_command('status', '--interval', '1')
        self.assertIn('counted: memory accesses from ', out)
        self.assertIn('bandwidth of no node', out)


class HistoryTest(OperatingCase):
    def test_history_lists_all_moves_the_last_or_those_of_one_guest(self):
        self.assertIn('no moves in the history', self.run_command('history')[1])
        self.run_command('apply', '--yes')
        self.run_command('undo', '--yes')
        first, second = self.history_entries()
        _, out, _ = self.run_command('history')
        self.assertEqual(3, len(out.splitlines()))
        self.assertIn(first.id, out)
        _, out, _ = self.run_command('history', '--last', '1', '--json')
        self.assertEqual(second.id, json.loads(out)['id'])
        self.assertEqual(
            'no moves in the history\n', self.run_command('history', '--guest', 'x')[1]
        )

    def test_lines_of_the_history_that_cannot_be_read_are_counted(self):
        self.run_command('apply', '--yes')
        with open(self.host.path('var/lib/nova-numa-pmc/history'), 'a') as file:
            file.write('no entry\n')
        _, out, err = self.run_command('history')
        self.assertIn(self.history_entries()[0].name, out)
        self.assertIn('unreadable lines of the history, left out: 1', err)

    def test_undo_says_that_guests_which_have_ended_are_left_alone(self):
        self.run_command('apply', '--yes')
        names = [entry.name for entry in self.history_entries()]
        for number in self.moved():
            self.end(number)
        code, out, _ = self.run_command('undo', '--yes')
        self.assertEqual(arguments.PROBLEM, code)
        for name in names:
            self.assertIn(name + ': left alone', out)


class TopPlanTest(OperatingCase):
    def test_top_prints_plans_until_it_is_ended(self):
        def wait(seconds):
            if self.now_s >= 10:
                raise KeyboardInterrupt
            self.now_s += seconds
            self.load_node_0(self.now_s)

        self.wait = wait
        code, out, _ = self.run_command('top', '--plan', '--json')
        self.assertEqual(
            (arguments.OK, [1, 1]),
            (code, [len(json.loads(line)['moves']) for line in out.splitlines()]),
        )
