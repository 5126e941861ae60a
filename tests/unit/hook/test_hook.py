# SPDX-License-Identifier: Apache-2.0
"""The hook places each guest that starts, and fails a start only if the operator is strict."""

import os
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import hook, model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.host import files
from nova_numa_pmc.model import MIB
from nova_numa_pmc.state import overrides, promises_file, publication
from tests.cases.hook import HookCase
from tests.fixtures import domains, fake_host, sysfs
from tests.fixtures.cgroups import LAYOUTS
from tests.fixtures.model_records import published_pools


class PlacedCase(HookCase):
    def promise(self, number):
        return self.promises()[fake_host.uuid_of(number)]

    def homes(self):
        return sorted(promise.cpu_nodes for promise in self.promises().values())


class StartTest(PlacedCase):
    def test_six_equal_guests_land_three_and_three(self):
        for number in range(6):
            self.assertEqual(0, self.call('start', number))
        self.assertEqual([(0,)] * 3 + [(1,)] * 3, self.homes())
        self.assertFalse(any(promise.started for promise in self.promises().values()))

    def test_a_refused_migration_or_restore_leaves_the_running_guest_its_promise(self):
        self.call('start', 1)
        before = self.promises()
        for operation in ('migrate', 'restore'):
            for number in (1, 2):
                self.assertEqual(0, self.call(operation, number))
        self.assertEqual(before, self.promises())

    def test_guests_are_spread_over_the_caches_of_a_node_and_held_to_them(self):
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(2), l3s=['0-1', '2-3', '4-5', '6-7'])
        trees = {}
        for number in range(5):
            self.assertEqual(0, self.call('start', number))
            trees[number] = self.host.launch(number)
            self.assertEqual(0, self.call('started', number))
        self.assertEqual(
            ['0-1', '4-5', '2-3', '6-7', '0-3'], [tree.held() for tree in trees.values()]
        )
        self.assertEqual(
            [(0, 1), (4, 5), (2, 3), (6, 7), ()],
            [self.promise(number).l3_cpus for number in trees],
        )
        log = [line for line in self.host.logged() if ': start: ' in line]
        self.assertIn('on the CPUs of one of its 2 L3 caches (pressure 0.50)', log[0])
        self.assertIn('one alone would be more crowded', log[4])

    def test_the_wait_for_the_lock_ends_before_the_scripts_alarm(self):
        self.host.configure('[hook]\ntimeout_s = 60\n')
        call = hook.HookCall('guest', 'start', self.root, None, hook.JournalLines(self.root))
        self.assertGreater(call.lock_timeout_s(), 30)
        with mock.patch('nova_numa_pmc.hook._signal.getitimer', return_value=(3.0, 0.0)):
            self.assertEqual(2.5, call.lock_timeout_s())

    def test_a_device_that_locks_memory_draws_the_guest(self):
        pci = 'pci0000:3a/0000:3b:02.1'
        sysfs.add_device(self.root, pci, 'bus/pci/devices/0000:3b:02.1', 1)
        xml = fake_host.domain_xml(1).replace(
            b'</devices>', domains.SRIOV.encode() + b'</devices>'
        )
        for _ in range(2):  # whatever the rotation
            self.call('start', 1, xml)
            self.assertEqual((1,), self.promise(1).cpu_nodes)
            self.call('release', 1, xml)

    def test_a_disabled_hook_does_nothing(self):
        self.host.configure('[hook]\nenabled = false\n')
        self.assertEqual(0, self.call('start', 1))
        self.assertEqual({}, self.promises())

    def test_unlistable_guests_forbid_a_decision(self):
        os.rmdir(self.host.path('run/libvirt/qemu'))
        self.host.write('run/libvirt/qemu', 'not a directory')
        self.assertEqual(0, self.call('start', 1))
        self.assertEqual({}, self.promises())
        self.assertIn('the guest is left as it is', self.host.logged()[-1])

    def test_strict_refuses_what_is_not_placed(self):
        self.host.configure('[hook]\nstrict = yes\n')
        self.assertEqual(hook.STRICT_STATUS, self.call('start', 1, b'<domain/>'))
        self.assertEqual(
            hook.STRICT_STATUS, self.call('start', 1, fake_host.domain_xml(1, vcpus=99))
        )
        self.assertEqual(0, self.call('start', 1))

    def test_strict_lets_start_what_is_not_ours_to_place_without_a_decision(self):
        self.host.configure('[hook]\nstrict = yes\ntimeout_s = 0.2\n')
        pinned = '<cputune><vcpupin vcpu="0" cpuset="1"/></cputune>'
        with promises_file.locked_at(
            self.host.path('run/nova-numa-pmc'), 1.0, files.read_boot_id(self.root)
        ):
            for extra in (domains.OPTED_OUT, domains.NUMA_NODES_1, pinned):
                self.assertEqual(0, self.call('start', 1, fake_host.domain_xml(1, extra=extra)))
            self.assertEqual(hook.STRICT_STATUS, self.call('start', 1))

    def test_a_pin_to_all_cpus_in_a_live_domain_does_not_count(self):
        pins = '<cputune><vcpupin vcpu="0" cpuset="0-7"/></cputune>'
        xml = fake_host.domain_xml(1, extra=pins)
        self.assertEqual(0, self.call('start', 1, xml))
        self.assertEqual('placed', self.promise(1).origin)
        tree = self.host.launch(1)
        self.assertEqual(0, self.call('started', 1, xml))
        self.assertEqual('0-3', tree.held())


class SimultaneousStartsTest(PlacedCase):
    def test_sixteen_simultaneous_starts_never_share_a_view(self):
        children = []
        for number in range(16):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    status = self.call('start', number, fake_host.domain_xml(number, 1, 256 * MIB))
                finally:
                    os._exit(status)
            children.append(pid)
        self.assertEqual([0] * 16, [os.waitpid(pid, 0)[1] for pid in children])
        # The socket holds about ten lines (net.unix.max_dgram_qlen); the hook does not wait for a
        # reader.
        lines = self.host.logged()
        self.assertTrue(lines)
        for line in lines:
            self.assertIn('fits on one node', line)
        self.assertEqual([(0,)] * 8 + [(1,)] * 8, self.homes())


class StartedTest(PlacedCase):
    def test_started_narrows_cpus_and_leaves_memory_wide(self):
        tree = self.host.launch(1)
        self.call('start', 1)
        self.assertEqual('', tree.held())
        self.assertEqual(0, self.call('started', 1))
        self.assertEqual(('0-3', ''), (tree.held(), tree.held('mems')))
        self.assertTrue(self.promise(1).started)
        self.assertFalse(self.promise(1).bound)

    def test_started_decides_again_for_a_guest_whose_slice_grants_no_cpu_of_its_node(self):
        """As for the first guests of a boot, before which their slice does not exist."""
        sysfs.build_sysfs(self.root, sysfs.equal_nodes(4))
        self.host.cpus, self.host.mems = '0-15', '0-3'
        xml = fake_host.domain_xml(
            1, extra='<resource><partition>/machine/nort</partition></resource>'
        )
        self.call('start', 1, xml)
        self.assertEqual((0,), self.promise(1).cpu_nodes)
        tree = self.host.launch(1, xml=xml)
        tree.write_file(os.path.join(tree.scope, 'cpuset.cpus.effective'), '8-15\n')
        self.call('started', 1, xml)
        self.assertEqual((2,), self.promise(1).cpu_nodes, 'one of the nodes that it grants')
        self.assertEqual('8-11', tree.held())
        self.assertIn('allows only CPUs 8-15', self.host.logged()[-1])

    def test_started_leaves_the_binding_of_memory_to_the_agent(self):
        self.host.configure('[hook]\nbind = true\n')
        for number, extra, is_bound in (
            (1, '', True),
            (2, '<memoryBacking><locked/></memoryBacking>', False),
        ):
            with self.subTest(extra):
                tree = self.host.launch(number)
                xml = fake_host.domain_xml(number, cpuset='0-3', extra=extra)
                self.call('start', number, xml)
                self.call('started', number, xml)
                self.assertEqual(('0-3', ''), (tree.held(), tree.held('mems')))
                promise = self.promise(number)
                self.assertEqual((True, is_bound), (promise.started, promise.bound))

    def test_started_decides_where_start_reserved_nothing(self):
        tree = self.host.launch(1)
        self.call('started', 1)
        self.assertEqual('0-3', tree.held())
        self.assertTrue(self.promise(1).started)

    def test_started_moves_a_guest_whose_record_was_lost_after_it_was_narrowed(self):
        for version, layout in LAYOUTS:
            with self.subTest(version=version, layout=layout):
                self.setUp()
                self.call('start', 2)
                tree = self.host.launch(1, version=version, layout=layout)
                is_nested = version == 2 and tree.parent != tree.scope
                for directory in [tree.parent] if is_nested else tree.children:
                    tree.write(os.path.join(directory, 'cpuset.cpus'), '0-3')
                self.call('started', 1)
                self.assertEqual('4-7', tree.held())
                if is_nested:
                    self.assertEqual('0-7', tree.read(tree.parent, 'cpuset.cpus'))

    def test_started_does_not_touch_another_process_under_the_pid(self):
        tree = self.host.launch(1)
        self.host.write('proc/4001/cmdline', 'qemu\0-uuid\0%s\0' % fake_host.uuid_of(2))
        self.call('start', 1)
        self.assertEqual(0, self.call('started', 1))
        self.assertEqual('', tree.held())
        promise = self.promise(1)
        self.assertEqual(
            ('floating', (), True, False),
            (promise.origin, promise.cpu_nodes, promise.started, promise.missed),
        )

    def test_a_host_that_cannot_be_read_leaves_a_guest_floating(self):
        tree = self.host.launch(1)
        self.call('start', 1)
        self.host.write('sys/devices/system/node/node1/distance', 'far\n')
        self.assertEqual(0, self.call('started', 1))
        self.assertEqual('', tree.held())
        self.assertEqual(
            ('floating', (), (), True),
            (
                self.promise(1).origin,
                self.promise(1).cpu_nodes,
                self.promise(1).mem_nodes,
                self.promise(1).started,
            ),
        )
        self.assertIn('distance', self.host.logged()[-1])

    def test_a_late_child_process_does_not_overwrite_a_newer_start(self):
        options = host_options.read(self.host.path('none'))
        self.call('start', 1)
        late = self.promise(1)
        self.call('stopped', 1)
        self.call('start', 1)
        newer = self.promise(1)
        promises_file.replace_running(late, options, self.root, 1)
        self.assertEqual(newer, self.promise(1))
        self.assertFalse(newer.started)

    def test_started_leaves_a_pin_of_another_process(self):
        tree = self.host.launch(1)
        self.call('start', 1)
        tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '3-4\n')
        self.call('started', 1)
        self.assertEqual('- 3-4 -', tree.held())
        self.assertEqual(('floating', False), (self.promise(1).origin, self.promise(1).missed))

    def test_started_leaves_pins_of_another_process_in_all_vcpus(self):
        for number, version in ((1, 1), (2, 2)):
            with self.subTest(version):
                tree = self.host.launch(number, version=version)
                self.call('start', number)
                for vcpu in tree.vcpus:
                    tree.write_file(os.path.join(vcpu, 'cpuset.cpus'), '3-4\n')
                before = tree.contents()
                self.call('started', number)
                self.assertEqual(before, tree.contents())

    def test_a_guest_placed_by_others_is_counted_and_not_written(self):
        xml = fake_host.domain_xml(1, extra=domains.NUMA_NODES_1)
        tree = self.host.launch(1, xml=xml)
        before = tree.contents()
        self.call('start', 1, xml)
        self.call('started', 1, xml)
        self.assertEqual(before, tree.contents())
        promise = self.promise(1)
        self.assertEqual(
            ('pinned', (1,), (1,), True),
            (promise.origin, promise.cpu_nodes, promise.mem_nodes, promise.started),
        )
        self.call('start', 2)
        self.assertEqual((0,), self.promise(2).cpu_nodes)


class MemoryLiesTest(PlacedCase):
    """At ``started``, some of a guest's memory already exists; its promise is for node 0."""

    def cpus_after_start(self, lying, extra=''):
        tree = self.host.launch(1, bytes_by_node=lying)
        xml = fake_host.domain_xml(1, extra=extra)
        self.call('start', 1, xml)
        self.assertEqual((0,), self.promise(1).cpu_nodes)
        self.call('started', 1, xml)
        return tree.held()

    def test_cpus_stay_with_what_the_agent_can_fetch(self):
        for size in (40 * MIB, 4096 * MIB):
            self.assertEqual('0-3', self.cpus_after_start({0: MIB, 1: size}))
            self.assertEqual((0,), self.promise(1).mem_nodes)
            self.assertIn('(unbound, %d of ' % (size >> 10), self.host.logged()[-1])
            self.call('stopped', 1)
            self.host.write('run/nova-numa-pmc/promises', '')

    def test_cpus_follow_memory_that_is_too_much_to_move(self):
        self.assertEqual('4-7', self.cpus_after_start({0: 10 * MIB, 1: 4097 * MIB}))
        self.assertEqual(((1,), (1,)), (self.promise(1).cpu_nodes, self.promise(1).mem_nodes))
        self.assertIn('with its memory', self.host.logged()[-1])

    def test_cpus_follow_locked_memory_however_little(self):
        self.assertEqual('4-7', self.cpus_after_start({0: 0, 1: 40 * MIB}, domains.LOCKED))

    def test_a_guest_that_the_operator_ignores_meanwhile_is_left_alone(self):
        for number, extra in ((1, domains.LOCKED), (2, '')):
            with self.subTest(extra):
                tree = self.host.launch(number, bytes_by_node={0: 0, 1: 40 * MIB})
                xml = fake_host.domain_xml(number, extra=extra)
                self.call('start', number, xml)
                overrides.put(
                    overrides.Override(
                        fake_host.uuid_of(number), 'ignore', fake_host.name_of(number)
                    ),
                    self.root,
                )
                self.call('started', number, xml)
                self.assertEqual('', tree.held())
                promise = self.promise(number)
                self.assertEqual(
                    ('floating', True, False), (promise.origin, promise.started, promise.missed)
                )
                self.assertIn('left alone: ignored by the operator', self.host.logged()[-1])

    def cpus_with_huge_pages(self, node, normal_bytes=0):
        """Place a guest on node 0 while its huge pages are on ``node``; return its CPUs."""
        sysfs.build_sysfs(
            self.root,
            [
                sysfs.FakeNode(number, cpus, huge_pages={2 * MIB: (1024, 1024)})
                for number, cpus in ((0, '0-3'), (1, '4-7'))
            ],
        )
        tree = self.host.launch(1, bytes_by_node={0: 0, 1: normal_bytes})
        tree.write_file(
            'proc/4001/numa_maps', '7f00 default huge N%d=256 kernelpagesize_kB=2048\n' % node
        )
        xml = fake_host.domain_xml(1, extra=domains.HUGE_PAGES_2M)
        self.call('start', 1, xml)
        self.call('started', 1, xml)
        return tree.held()

    def test_cpus_follow_huge_pages(self):
        self.assertEqual('4-7', self.cpus_with_huge_pages(1))
        self.assertIn('(local)', self.host.logged()[-1])

    def test_memory_beside_huge_pages_is_not_bound(self):
        self.host.configure('[hook]\nbind = true\n')
        self.assertEqual('0-3', self.cpus_with_huge_pages(0, MIB))
        self.assertFalse(self.promise(1).bound)


class EndTest(PlacedCase):
    def test_stopped_and_release_drop_the_promise(self):
        for operation in ('stopped', 'release'):
            self.call('start', 1)
            self.assertEqual(0, self.call(operation, 1))
            self.assertEqual({}, self.promises())

    def test_stopped_with_unreadable_xml_drops_the_promise(self):
        self.call('start', 1)
        self.call('stopped', 1, b'<domain>')
        self.assertEqual({}, self.promises())


class BootstrapTest(PlacedCase):
    def test_running_guests_are_promised_as_starting_ones_are(self):
        for extra in ('', domains.OPTED_OUT, domains.NUMA_NODES_1):
            with self.subTest(extra=extra):
                xml = fake_host.domain_xml(1, extra=extra).replace(
                    b'>2</vcpu>', b" current='1'>4</vcpu>"
                )
                self.call('start', 1, xml)
                started = self.promise(1)
                tree = self.host.launch(1, xml=xml)
                tree.set_all('0-3' if not extra else '')
                self.call('stopped', 1)
                self.call('start', 9)
                self.assertEqual(
                    started._replace(since_ns=0, started=True),
                    self.promise(1)._replace(since_ns=0),
                )
                self.call('stopped', 9)


class PoolTest(PlacedCase):
    """Two nodes of four CPUs; the floating pool has the first two CPUs of each."""

    SHARED = '0-1,4-5'

    def publish(self, cpus, boot_id=None):
        publication.write(
            self.host.path('run/nova-numa-pmc'),
            published_pools(
                boot_id or files.read_boot_id(self.root),
                1,
                (model.PoolLoad(sysfs.parse_cpulist(cpus)),),
            ),
        )

    def test_a_guest_is_placed_by_the_load_of_its_own_pool(self):
        loads = [
            tuple(enumerate(map(model.NodeLoad, demands))) for demands in ((0.0, 4.0), (4.0, 0.0))
        ]
        vcpus = ((0, 0.0), (1, 0.0))
        publication.write(
            self.host.path('run/nova-numa-pmc'),
            published_pools(
                files.read_boot_id(self.root),
                files.boottime_ns(),
                (
                    model.PoolLoad(sysfs.parse_cpulist(self.SHARED), loads[0], vcpus),
                    model.PoolLoad(sysfs.parse_cpulist('2-3,6-7'), loads[1], vcpus),
                ),
            ),
        )
        self.call('start', 1)
        self.call('start', 2, fake_host.domain_xml(2, cpuset='2-3,6-7,99'))
        self.call('start', 3, fake_host.domain_xml(3, cpuset='3,7'))
        messages = self.host.logged()
        self.assertEqual(3, len(messages), messages)
        for line, cpus, evidence in zip(
            messages,
            ('0-1', '6-7', '3,7'),
            (
                'based on the pressure measured',
                'based on the pressure measured',
                "promises alone: the guest's CPUs were not measured",
            ),
        ):
            self.assertIn('CPUs %s;' % cpus, line)
            self.assertIn(evidence, line)

    def test_dedicated_vcpus_charge_no_shared_core(self):
        for published in (False, True):
            with self.subTest(published=published):
                if published:
                    self.publish(self.SHARED)
                pinned = domains.domain(
                    fake_host.name_of(1), fake_host.uuid_of(1), placement=domains.DEDICATED
                )
                self.call('start', 1, pinned)
                self.assertEqual(
                    (0, (0, 1), 'pinned'),
                    (self.promise(1).vcpus, self.promise(1).cpu_nodes, self.promise(1).origin),
                )


class BoundedTest(unittest.TestCase):
    def test_a_child_that_is_killed_has_ended(self):
        self.assertTrue(hook.run_in_child(lambda: os.kill(os.getpid(), 9), 20, print))

    def test_a_late_child_is_left_to_finish(self):
        with tempfile.TemporaryDirectory() as directory:
            gate, done = directory + '/gate', directory + '/done'
            os.mkfifo(gate)
            os.mkfifo(done)

            def work():
                with open(gate), open(done, 'w') as stream:
                    stream.write('finished')

            self.assertFalse(hook.run_in_child(work, 0.01, print))
            with open(gate, 'w'), open(done) as stream:
                self.assertEqual('finished', stream.read())

    def test_a_process_left_behind_holds_none_of_our_descriptors(self):
        """libvirt waits until every holder of the hook's stdout and stderr has closed them."""
        with tempfile.TemporaryDirectory() as directory:
            gate, reader, writer = directory + '/gate', *os.pipe()
            os.mkfifo(gate)

            def work():
                links = {os.readlink('/proc/self/fd/%d' % number) for number in range(3)}
                with open(gate, 'w') as stream:  # until another process opens the other end
                    print(os.getsid(0) == os.getpid(), links, file=stream)

            hook.run_detached(work, print)
            os.close(writer)
            self.assertEqual(b'', os.read(reader, 1))
            os.close(reader)
            with open(gate) as stream:
                self.assertEqual("True {'/dev/null'}\n", stream.read())
            os.wait()

    def test_a_fault_of_a_process_left_behind_is_reported(self):
        with tempfile.TemporaryDirectory() as directory:
            os.mkfifo(directory + '/reported')

            def report(error):
                with open(directory + '/reported', 'w') as stream:
                    stream.write(repr(error))

            hook.run_detached(lambda: {'found': 0}['lost'], report)
            with open(directory + '/reported') as stream:
                self.assertEqual("KeyError('lost')", stream.read())
            os.wait()
