# SPDX-License-Identifier: Apache-2.0
"""Guests are held to their places, whatever resets their cpusets."""

import logging
import os
import shutil
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.agent import binding
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import promising
from nova_numa_pmc.exceptions import CpusetError, StateLocked
from nova_numa_pmc.host import holding
from nova_numa_pmc.state import move_lock, overrides, promises_file
from tests.cases.agent import LOG, MIB, START_NS, AgentCase
from tests.fixtures import domains, fake_host, sysfs


class ReassertionTest(AgentCase):
    def test_a_reset_cpuset_is_written_in_the_next_tick_and_logged_once(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        with self.assertLogs(LOG, 'INFO') as logs:
            for at_s, reset in ((0, None), (5, None), (10, '0-7'), (15, None)):
                if reset:
                    tree.set_all(reset)
                self.tick(agent, at_s)
                self.assertEqual('4-7', tree.held())
        held = [text for text in logs.output if 'held to node 1 again' in text]
        self.assertEqual(2, len(held))
        self.assertIn('CPUs 0-7 to 4-7', held[1])

    def test_a_status_file_that_outlives_its_qemu_does_not_write_to_another_guest(self):
        agent = self.open_agent()
        self.promise(1, 1)
        other = self.launch(2)
        self.launch(1)
        with self.assertLogs(LOG) as logs:
            # The pid of the first guest's QEMU now belongs to the second guest.
            shutil.copy(self.host.path('proc/4002/cgroup'), self.host.path('proc/4001/cgroup'))
            self.tick(agent, 0)
            logging.getLogger(LOG).info('end')
        self.assertEqual('', other.held())
        self.assertNotIn('held', ''.join(logs.output))

    def test_a_held_guest_gets_cpus_of_its_node_that_come_online(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        for at_s, online, cpus in ((0, '0-6', '4-6'), (5, '0-7', '4-7'), (10, '0-5', '4-7')):
            self.host.write('sys/devices/system/cpu/online', online + '\n')
            self.host.write('sys/devices/system/node/node1/cpulist', '4-%s\n' % online[-1])
            self.tick(agent, at_s)
            self.assertEqual(cpus, tree.held())

    def test_guests_that_have_changed_wait_for_the_promises_file_once_a_tick(self):
        agent = self.open_agent()
        trees = []
        for number in (1, 2, 3):
            self.promise(number, 1, vcpus=4)  # two have been unplugged since
            trees.append(self.launch(number))
        with mock.patch.object(
            promises_file, 'locked', side_effect=StateLocked('suspended')
        ) as locked:
            self.tick(agent, 0)
        self.assertEqual(1, locked.call_count)
        self.assertEqual(['4-7'] * 3, [tree.held() for tree in trees])
        self.tick(agent, 5)
        self.assertEqual([2] * 3, [promise.vcpus for promise in self.promises().values()])

    def test_a_guest_promised_one_cache_is_held_to_its_cpus(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2), l3s=['0-1', '2-3', '4-5', '6-7'])
        agent = self.open_agent()
        self.promise(1, 1, l3_cpus=(6, 7))
        tree = self.launch(1)
        for at_s, reset in ((0, None), (5, '0-7'), (10, '4-7')):
            if reset:
                tree.set_all(reset)
            self.tick(agent, at_s)
            self.assertEqual('6-7', tree.held())
        with self.subTest('moved, by a process that was killed'):
            self.promise(1, 0)
            self.tick(self.open_agent(), 0)
            self.assertEqual('0-3', tree.held())

    def test_a_guest_that_the_agent_leaves_alone_does_not_count_as_failing(self):
        agent = self.open_agent()
        self.promise(1, 1)
        self.launch(1)
        self.host.write('proc/4001/cgroup', '0::/system.slice/other.service\n')
        self.assertEqual(1, self.tick(agent, 0).failing_count)
        for at_s, kind in ((5, model.IGNORE), (10, model.PIN)):
            overrides.put(
                overrides.Override(fake_host.uuid_of(1), kind, fake_host.name_of(1)), self.root
            )
            self.assertEqual(kind == model.PIN, self.tick(agent, at_s).failing_count)

    def test_a_guest_that_is_gone_and_one_that_fails_do_not_hinder_the_others(self):
        agent = self.open_agent()
        for number in (1, 2, 3):
            self.promise(number, 1)
        trees = [self.launch(number) for number in (1, 2, 3)]
        self.host.write('proc/4001/cgroup', '0::/system.slice/other.service\n')
        os.unlink(self.host.path('proc/4002/cgroup'))
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.tick(agent, 0)
            self.tick(agent, 5)
        self.assertEqual(('', '', '4-7'), tuple(tree.held() for tree in trees))
        self.assertEqual(1, sum('holding guest' in text for text in logs.output))

    def test_a_guest_whose_promise_cannot_be_updated_does_not_hinder_the_others(self):
        agent = self.open_agent()
        for number in (1, 2):
            self.promise(number, 1, vcpus=4)  # two have been unplugged since
        trees = [self.launch(number) for number in (1, 2)]
        updated = promising.updated_promise

        def fail_for_the_first(promise, guest, host):
            if guest.name == fake_host.name_of(1):
                raise ZeroDivisionError
            return updated(promise, guest, host)

        with mock.patch.object(promising, 'updated_promise', fail_for_the_first):
            with self.assertLogs(LOG, 'WARNING') as logs:
                self.assertEqual(1, self.tick(agent, 0).failing_count)
                self.tick(agent, 5)
        self.assertEqual(['4-7', '4-7'], [tree.held() for tree in trees])
        vcpus = [self.promises()[fake_host.uuid_of(number)].vcpus for number in (1, 2)]
        self.assertEqual([4, 2], vcpus)
        self.assertEqual(1, sum('updating the promise of guest' in text for text in logs.output))
        self.assertEqual(0, self.tick(agent, 10).failing_count)

    def test_a_cpuset_reset_again_and_again_is_given_up_for_a_while(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        with self.assertLogs(LOG, 'WARNING') as logs:
            for tick_number in range(9):
                tree.set_all('0-7')
                self.tick(agent, 5 * tick_number)
        self.assertEqual('0-7', tree.held())
        self.assertEqual(1, sum('find the process that writes it' in text for text in logs.output))
        self.tick(agent, 700)
        self.assertEqual('4-7', tree.held())


PIN = "  <cputune><vcpupin vcpu='%d' cpuset='%s'/></cputune>\n"


class OperatorsWordTest(AgentCase):
    """Cpusets set by an operator, with libvirt or by hand, stay; the rest stays held."""

    def held(self, tree, agent, at_s):
        self.tick(agent, at_s)
        return tree.held()

    def test_a_pinned_vcpu_is_left_and_the_others_are_held(self):
        for version in (1, 2):
            with self.subTest(version=version):
                agent = self.open_agent()
                self.promise(1, 1)
                tree = self.launch(1, version=version)
                self.assertEqual('4-7', self.held(tree, agent, 0))
                self.launch(1, version=version, xml=fake_host.domain_xml(1, extra=PIN % (0, '2')))
                tree.set_all('0-7')  # also a reset
                tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '2\n')
                with self.assertLogs(LOG, 'INFO') as logs:
                    self.assertEqual('4-7 2 4-7', self.held(tree, agent, 5))
                    self.assertEqual('4-7 2 4-7', self.held(tree, agent, 10))
                self.assertEqual(1, sum('alone: vcpu0' in text for text in logs.output))
                self.assertEqual('4-7 2 4-7', self.held(tree, self.open_agent(), 15))

    def test_a_pin_that_is_undone_no_longer_counts(self):
        """vcpupin GUEST 0 r pins to all CPUs that the vCPU may have."""
        agent = self.open_agent()
        self.promise(1, 1)
        for cpuset, wide in ((None, '0-7'), ('2-6', '2-6')):
            with self.subTest(cpuset=cpuset):
                tree = self.launch(
                    1, xml=fake_host.domain_xml(1, cpuset=cpuset, extra=PIN % (0, wide))
                )
                tree.set_all(wide)
                self.assertEqual('4-7' if cpuset is None else '4-6', self.held(tree, agent, 0))

    def test_a_set_written_by_hand_stays(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        self.held(tree, agent, 0)
        for cpus in ('2', '0-3', '5'):  # also those of a whole node, and one in it
            tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), cpus + '\n')
            self.assertEqual('4-7 %s 4-7' % cpus, self.held(tree, agent, 5))
        tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '0-7\n')
        self.assertEqual('4-7', self.held(tree, agent, 10))

    def test_a_set_written_by_hand_before_the_agent_began_stays(self):
        self.promise(1, 1)
        tree = self.launch(1)
        tree.set_all('4-7')
        tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '2\n')
        agent = self.open_agent()
        for at_s in (0, 5):
            self.assertEqual('4-7 2 4-7', self.held(tree, agent, at_s))

    def test_a_move_killed_between_two_groups_is_completed(self):
        self.promise(1, 1)
        tree = self.launch(1)
        tree.set_all('0-3')
        tree.write_file(os.path.join(tree.emulator, 'cpuset.cpus'), '4-7\n')
        self.assertEqual('4-7', self.held(tree, self.open_agent(), 0))

    def test_cpus_follow_memory_that_numatune_has_bound(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        self.assertEqual('4-7', self.held(tree, agent, 0))
        for at_s, nodes, cpus in ((5, '0', '0-3'), (10, '0-1', '0-3'), (15, '1', '4-7')):
            self.launch(
                1,
                xml=fake_host.domain_xml(
                    1,
                    extra=(
                        "  <numatune><memory mode='strict' nodeset='%s'/></numatune>\n" % nodes
                    ),
                ),
            )
            self.assertEqual(cpus, self.held(tree, agent, at_s))

    def test_what_a_start_or_an_older_release_has_narrowed_is_handed_over(self):
        agent = self.open_agent()
        self.promise(1, 1)
        tree = self.launch(1)
        for at_s, cpus in ((0, '4-7'), (5, '0-3')):  # the move to the latter was killed
            tree.set_all('')
            tree.write_file(os.path.join(tree.parent, 'cpuset.cpus'), cpus + '\n')
            self.assertEqual('4-7', self.held(tree, self.open_agent(), at_s))
            self.assertEqual('0-7', tree.read(tree.parent, 'cpuset.cpus'))
        self.tick(agent, 10)


class BoundTest(AgentCase):
    def setUp(self):
        super().setUp()
        self.host.configure('[hook]\nbind = true\n')
        self.promise(1, 1, bound=True)
        self.tree = self.host.launch(1, {0: 0, 1: MIB})
        self.set_guest_times(1, 0)

    def mems(self):
        return self.tree.held('mems')

    def unbind_all(self):
        options = host_options.read(os.path.join(self.root, host_options.PATH[1:]))
        binding.unbind_all(options, self.root, logging.getLogger(LOG), 'ended')

    def test_guests_unbound_at_an_agents_end_are_bound_by_the_next(self):
        self.tick(self.open_agent(), 0)
        self.assertEqual('1', self.mems())
        self.unbind_all()
        self.assertEqual('0-1', self.mems())
        self.assertTrue(self.promises()[fake_host.uuid_of(1)].bound)
        self.tick(self.open_agent(), 5)
        self.assertEqual('1', self.mems())

    def test_a_guest_that_stays_bound_or_has_ended_leaves_no_other_bound(self):
        trees = [self.tree]
        for number in (2, 3):
            self.promise(number, 1, bound=True)
            trees.append(self.host.launch(number, {0: 0, 1: MIB}))
            self.set_guest_times(number, 0)
        self.tick(self.open_agent(), 0)
        self.host.write('proc/4001/cgroup', '0::/system.slice/other.service\n')
        os.unlink(self.host.path('proc/4002/cgroup'))
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.unbind_all()
        self.assertEqual(['1', '1', '0-1'], [tree.held('mems') for tree in trees])
        [message] = logs.output
        self.assertIn('guest %s: stays bound: ' % fake_host.name_of(1), message)

    def test_guests_are_unbound_while_the_overrides_cannot_be_trusted(self):
        path = os.path.join(self.root, overrides.DIRECTORY, overrides.FILE)
        overrides.put(overrides.Override(fake_host.uuid_of(2), model.PIN, 'g'), self.root)
        agent = self.open_agent()
        self.tick(agent, 0)
        os.chmod(path, 0o666)
        with self.assertLogs(LOG, 'INFO') as logs:
            self.tick(agent, 5)
        self.assertEqual('0-1', self.mems())
        self.assertIn('no longer bound: the overrides cannot be read', ' '.join(logs.output))
        os.chmod(path, 0o600)
        self.tick(agent, 10)
        self.assertEqual('1', self.mems())

    def test_no_guest_is_bound_where_more_is_promised_than_there_is(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        self.promise(2, 1, started=False, since_ns=START_NS)
        promised = self.promises()[fake_host.uuid_of(2)]._replace(memory_bytes=1 << 50)
        with self.locked() as draft:
            draft.put(promised)
        self.tick(agent, 5)
        self.assertEqual('0-1', self.mems())
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def leave(self, free_mib):
        """Set the available memory of node 1."""
        sysfs.write_zones(self.root, {1: (free_mib - 100) << 20}, cache_bytes=200 << 20)

    def test_no_guest_is_bound_where_others_have_taken_the_memory(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        # 512 MiB are promised, of which the guest has 1; 256 MiB of each node are the host's.
        for free_mib, mems in ((256 + 511, '1'), (256 + 510, '0-1')):
            self.leave(free_mib)
            self.tick(agent, 5)
            self.assertEqual(mems, self.mems())
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def test_a_guest_that_cannot_be_bound_is_recorded_as_unbound(self):
        self.tree.set_bytes({0: 400 * MIB, 1: MIB})
        self.host.configure('[hook]\nbind = true\n')
        with self.assertLogs(LOG, 'INFO') as logs:
            self.tick(self.open_agent(), 0)
        self.assertIn('too much to move at once', ' '.join(logs.output))
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def test_a_guest_that_cannot_be_held_is_unbound(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        self.leave(256 + 510)
        self.tree.set_all('0-7')
        with mock.patch.object(holding, 'hold', side_effect=CpusetError('read-only')):
            self.tick(agent, 5)
        self.assertEqual(('0-7', '0-1'), (self.tree.held(), self.mems()))

    def test_the_promise_of_a_guest_that_was_bound_before_the_promises_were_lost_is_bound(self):
        self.tree.set_all('4-7')
        self.tree.set_all('1', 'mems')
        with self.locked() as draft:
            draft.promises.pop(fake_host.uuid_of(1), None)
        self.leave(256 + 510)
        agent = self.open_agent()
        self.tick(agent, 0)
        self.tick(agent, 5)
        self.assertEqual('0-1', self.mems())

    def test_bound_guests_are_not_written_while_a_command_moves_them(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        for kind, text in (('cpus', '0-7'), ('mems', '0-1')):
            self.tree.set_all(text, kind)
        before = self.tree.contents()
        with move_lock.MoveLock(self.directory, 'apply') as command:
            command.renew([fake_host.uuid_of(1)])
            self.tick(agent, 5)
            self.assertEqual(before, self.tree.contents())
        self.tick(agent, 10)
        self.assertEqual(('4-7', '1'), (self.tree.held(), self.mems()))
        self.tree.set_all('0-7')
        with move_lock.MoveLock(self.directory, 'apply') as command:
            command.renew([fake_host.uuid_of(1)])
            self.leave(256 + 510)
            self.tick(agent, 15)
        self.assertEqual(('0-7', '0-1'), (self.tree.held(), self.mems()))
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def set_status(self, xml):
        """Replace the status file of the guest."""
        self.host.write(
            'run/libvirt/qemu/%s.xml' % fake_host.name_of(1),
            b"<domstatus state='running' pid='4001'>\n%s</domstatus>\n" % xml,
        )

    def test_a_bound_guest_that_may_not_be_held_is_only_unbound(self):
        xml = fake_host.domain_xml(1)
        memory_device = b"<memory model='dimm'><source><nodemask>1</nodemask></source></memory>"
        starting = {'started': False, 'since_ns': START_NS}
        for why, status, promised in (
            ('incoming migration', b"<job async='migration in'/>\n" + xml, {}),
            ('memory device', xml.replace(b'<devices>', b'<devices>' + memory_device), {}),
            ('start', b"<job async='start'/>\n" + xml, starting),
            ('ignored', xml, {}),
        ):
            with self.subTest(why):
                self.set_status(status)
                self.promise(1, 1, bound=True, **promised)
                if why == 'ignored':
                    overrides.put(
                        overrides.Override(fake_host.uuid_of(1), model.IGNORE, 'g'), self.root
                    )
                agent = self.open_agent()
                self.tree.set_all('0-7')
                for at_s, before, free_mib, after in (
                    (0, '0-1', 256 + 511, '0-1'),
                    (5, '1', 256 + 511, '1'),
                    (10, '1', 256 + 510, '0-1'),
                ):
                    self.tree.set_all(before, 'mems')
                    self.leave(free_mib)
                    self.tick(agent, at_s)
                    self.assertEqual(('0-7', after), (self.tree.held(), self.mems()))
                self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def test_a_bound_guest_with_huge_pages_is_unbound(self):
        """Only the memory of QEMU itself could spill."""
        self.set_status(fake_host.domain_xml(1, extra=domains.HUGE_PAGES_2M))
        self.promise(1, 1, bound=True, page_bytes=2 * MIB)
        self.tree.set_all('1', 'mems')
        self.tick(self.open_agent(), 0)
        self.assertEqual('0-1', self.mems())
        self.assertFalse(self.promises()[fake_host.uuid_of(1)].bound)

    def test_guests_are_unbound_once_the_option_is_off(self):
        self.tick(self.open_agent(), 0)
        self.host.configure('')
        self.tick(self.open_agent(), 5)
        self.assertEqual('0-1', self.mems())
