# SPDX-License-Identifier: Apache-2.0
"""A guest's CPUs are narrow before they run, without obstructing what libvirt still writes."""

import os
import shutil
from unittest import mock

from nova_numa_pmc import hook
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.hook import early
from nova_numa_pmc.host import guests
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import promises_file
from tests.cases.hook import HookCase
from tests.fixtures import domains, fake_host
from tests.fixtures.cgroups import FLAT, NESTED, WITHOUT_SYSTEMD


class EarlyCase(HookCase):
    version, layout = 2, NESTED

    def setUp(self):
        super().setUp()
        self.options = host_options.read(self.host.path('none'))
        self.written = []

    def start(self, number=1, old_pid_file=None, **xml):
        """Decide as ``start`` does; return what its child runs."""
        guest = guests.parse(fake_host.domain_xml(number, **xml))
        decision = decide.decide_promise(guest, self.options, self.root, 1.0)
        return early.EarlyHold(
            decision.promise,
            guest,
            decision.cpus,
            self.options,
            self.root,
            old_pid_file,
            self.write,
        )

    def write(self, path, text):
        self.written.append((os.path.basename(os.path.dirname(path)), text))
        with open(path, 'w') as file:
            file.write(text)

    def launch(self, vcpus=0, executed=True):
        """Fork QEMU; by then, libvirt has created all groups except those of the vCPUs."""
        tree = self.host.launch(1, version=self.version, status=False, layout=self.layout)
        for vcpu in tree.vcpus[vcpus:]:
            shutil.rmtree(vcpu)
        if not executed:
            self.host.write('proc/4001/cmdline', 'libvirtd\0--timeout\0')
        return tree


class Version2Test(EarlyCase):
    def test_narrowing_waits_for_qemu_itself(self):
        hold = self.start()
        self.assertTrue(hold.step(0.0))
        self.launch(executed=False)
        self.assertTrue(hold.step(0.1))
        self.assertEqual([], self.written)
        self.launch()
        self.assertFalse(hold.step(0.2))
        self.assertEqual([('libvirt', '0-3')], self.written)

    def test_the_process_of_an_earlier_start_is_not_narrowed(self):
        self.launch()
        old_pid_file = guests.runtime_file_identity(self.root, fake_host.name_of(1), '.pid')
        hold = self.start(old_pid_file=old_pid_file)
        self.assertTrue(hold.step(0.0))
        self.host.end(1)
        self.assertTrue(hold.step(0.1))
        self.launch()
        self.assertFalse(hold.step(0.2))
        self.assertEqual([('libvirt', '0-3')], self.written)

    def test_nothing_is_narrowed_once_libvirt_sets_up_vcpus(self):
        """libvirt is calling sched_setaffinity(2), which may fail if CPUs are narrowed now."""
        hold = self.start()
        self.launch(vcpus=1)
        self.assertFalse(hold.step(0.0))
        self.assertEqual([], self.written)

    def test_nothing_is_written_for_a_guest_that_ends(self):
        hold = self.start()
        tree = self.launch()
        shutil.rmtree(tree.scope)
        self.assertTrue(hold.step(0.0))
        self.host.end(1)
        self.assertTrue(hold.step(0.1))
        self.assertEqual([], self.written)


class Version1Test(EarlyCase):
    version = 1

    def launch_and_narrow_qemu(self, hold):
        tree = self.launch()
        self.assertTrue(hold.step(0.0))
        self.assertEqual([('emulator', '0-3')], self.written)
        return tree

    def add_vcpu(self, tree, number, cpus='0-7'):
        self.add_thread(tree, 'vcpu%d' % number, cpus)

    def add_thread(self, tree, name, cpus='0-7'):
        group = os.path.join(tree.parent, name)
        tree.add_group(group)
        tree.write_file(os.path.join(group, 'cpuset.cpus'), cpus)
        tree.write_file(os.path.join(group, 'tasks'), '5000\n')

    def test_vcpus_are_narrowed_once_libvirt_is_done_with_all(self):
        hold = self.start()
        tree = self.launch_and_narrow_qemu(hold)
        self.add_vcpu(tree, 0)
        tree.write_file(os.path.join(tree.emulator, 'tasks'), '4001\n')
        self.assertTrue(hold.step(0.1))
        self.assertTrue(hold.step(1.0))  # the other vCPU is still to come
        self.add_vcpu(tree, 1)
        self.assertTrue(hold.step(1.1))
        self.assertTrue(hold.step(1.12))
        self.assertEqual(1, len(self.written))
        self.assertFalse(hold.step(1.2))
        self.assertEqual([('vcpu0', '0-3'), ('vcpu1', '0-3')], self.written[1:])
        self.assertIn(tree.read(tree.parent, 'cpuset.cpus'), ('', '0-7'))

    def test_started_finds_what_was_narrowed_for_a_guest_on_all_nodes(self):
        hold = self.start(vcpus=6)
        tree = self.launch()
        hold.step(0.0)
        for number in (0, 1):
            self.add_vcpu(tree, number)
        tree.write_file(os.path.join(tree.emulator, 'cpuset.cpus'), '2-6\n')
        self.host.write('sys/devices/system/cpu/isolated', '2\n')
        self.call('started', xml=fake_host.domain_xml(1, vcpus=6))
        self.assertNotIn('did not write', self.host.logged()[-1])

    def test_a_vcpu_that_is_pinned_is_not_narrowed(self):
        hold = self.start()
        tree = self.launch_and_narrow_qemu(hold)
        for number, cpus in enumerate(('0-7', '6')):
            self.add_vcpu(tree, number, cpus)
        hold.step(0.1)
        hold.step(0.2)
        self.assertEqual([('vcpu0', '0-3')], self.written[1:])


class FlatTest(Version1Test):
    """Version 2 without ``libvirt/``: each group is narrowed separately, as with version 1."""

    version, layout = 2, FLAT


class WithoutSystemdTest(FlatTest):
    layout = WITHOUT_SYSTEMD


class StartedTest(EarlyCase):
    """``started`` takes over what was narrowed, or widens it again."""

    def narrow(self, **xml):
        """Narrow the groups that exist before the vCPUs run, and add those of the vCPUs."""
        tree = self.launch()
        self.start(**xml).step(0.0)
        self.assertEqual(['0-3'], [cpus for _, cpus in self.written])
        for vcpu in tree.vcpus:
            tree.add_group(vcpu)
        return tree

    def cpus(self, tree):
        """Return the CPUs of the group above the threads, and of those of the threads.

        A group without a set has all that the group above has.
        """
        return [
            tree.read(group, 'cpuset.cpus') or '0-7' for group in (tree.parent, *tree.children)
        ]

    def test_started_hands_the_narrow_set_over_to_the_children(self):
        tree = self.narrow()
        self.call('started')
        self.assertEqual(['0-7', '0-3', '0-3', '0-3'], self.cpus(tree))

    def test_what_was_narrowed_is_handed_over_though_the_pool_has_changed_since(self):
        tree = self.narrow()
        self.host.write('sys/devices/system/cpu/isolated', '0\n')
        self.call('started')
        self.assertEqual(['0-7', '1-3', '1-3', '1-3'], self.cpus(tree))

    def test_narrowing_is_undone_where_the_guest_is_not_held(self):
        tree = self.narrow()
        # Another hook has written this set, and the kernel has narrowed it.
        tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus'), '3-4\n')
        tree.write_file(os.path.join(tree.vcpus[0], 'cpuset.cpus.effective'), '3\n')
        self.call('started')
        self.assertIn('which nova-numa-pmc did not write', self.host.logged()[-1])
        self.assertEqual(['0-7', '0-7', '3-4', '0-7'], self.cpus(tree))

    def test_narrowing_is_undone_where_the_guest_cannot_be_decided_on_again(self):
        self.host.configure('[hook]\ntimeout_s = 0.1\n')
        tree = self.narrow(extra=domains.LOCKED)
        tree.set_bytes({0: 0, 1: 40 << 20})
        call = hook.HookCall(
            fake_host.name_of(1), 'started', self.root, None, hook.JournalLines(self.root)
        )
        with promises_file.locked(self.options, self.root, 1.0):
            why_not = call.perform(fake_host.domain_xml(1, extra=domains.LOCKED))
        self.assertTrue(why_not)
        self.assertIn('the guest is left as it is', self.host.logged()[-1])
        self.assertEqual(['0-7'] * 4, self.cpus(tree))


class Version1StartedTest(StartedTest):
    version = 1


class FlatStartedTest(StartedTest):
    layout = FLAT


class WithoutSystemdStartedTest(StartedTest):
    layout = WITHOUT_SYSTEMD


class OverTest(EarlyCase):
    def run_on(self, hold, grace_s=900.0):
        """Run it with its own clock; return how long it took [s]."""
        self.now_s = 0.0

        def sleep(seconds):
            self.now_s += seconds

        early.run(hold, grace_s, lambda: self.now_s, sleep)
        return self.now_s

    def test_the_early_process_ends_with_the_start(self):
        promise = self.start()._promise
        for what in ('release', 'started', 'a newer start', 'the record is gone'):
            with self.subTest(what):
                hold = self.start()
                with promises_file.locked(self.options, self.root, 1.0) as draft:
                    if what == 'release':
                        draft.promises.pop(promise.uuid, None)
                    elif what == 'started':
                        draft.put(hold._promise._replace(started=True))
                    elif what == 'a newer start':
                        draft.put(hold._promise._replace(since_ns=1))
                if what == 'the record is gone':
                    os.unlink(self.host.path('run/nova-numa-pmc/promises'))
                self.assertLess(self.run_on(hold), 1.2)

    def test_the_early_process_ends_after_the_grace_and_sleeps_longer(self):
        hold, looked = self.start(), []
        step = hold.step
        hold.step = lambda now_s: looked.append(now_s) or step(now_s)
        self.assertAlmostEqual(900.0, self.run_on(hold), delta=0.2)
        self.assertLess(len(looked), 10 / 0.005 + 890 / 0.1 + 10)


class HookTest(HookCase):
    def test_only_a_start_that_has_a_place_leaves_a_process(self):
        for vcpus, left in ((2, True), (99, False)):
            with self.subTest(vcpus=vcpus):
                left_behind = mock.Mock()
                xml = fake_host.domain_xml(1, vcpus=vcpus)
                self.assertEqual(0, self.call('start', xml=xml, run_detached=left_behind))
                self.assertEqual(left, left_behind.called)

    def test_without_a_process_the_start_goes_on(self):
        def none(_work, _report):
            raise OSError(11, 'Resource temporarily unavailable')

        self.assertEqual(0, self.call('start', run_detached=none))
        self.assertIn('CPUs are held once they run', self.host.logged()[-1])
