# SPDX-License-Identifier: Apache-2.0
"""Promises are brought up to date: ended guests are dropped, running ones are counted."""

import os
import shutil
import time

from hypothesis import given, settings as examples, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import files
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import promises_file
from tests.cases.root import RootCase
from tests.fixtures import domains, fake_host, services

GRACE_S = host_options.START_GRACE_S
NOW_NS = 10**15
STATUS = 'run/libvirt/qemu'


def promise(number, age_s=0, **fields):
    """Return a guest's promise on node 0, with its start in progress by default."""
    return model.Promise(
        fake_host.uuid_of(number),
        fake_host.name_of(number),
        (0,),
        (0,),
        2,
        512 * fake_host.MIB,
        since_ns=NOW_NS - age_s * 10**9,
        **fields,
    )


class Draft(promises_file.HostPromises):
    """Promises without a file."""

    def __init__(self, *promised, problem=None):
        super().__init__({promise.uuid: promise for promise in promised}, problem=problem)

    def numbers(self):
        return {int(promise.name[-8:], 16) for promise in self.promises.values()}


class ReconcileTest(RootCase):
    def setUp(self):
        super().setUp()
        self.host = fake_host.FakeHost(self.root)
        self.addCleanup(self.host.close)

    def reconcile(self, draft, starting=None, boottime_ns=NOW_NS):
        options = host_options.read(self.host.path(host_options.PATH[1:]))
        host = decide.host_with_pool_cpus(self.root)
        return decide.reconcile(draft, host, options, self.root, starting, boottime_ns)

    def test_a_guest_that_does_not_run_has_a_promise_only_while_starting(self):
        for age_s, started, kept in (
            (0, True, False),
            (0, False, True),
            (GRACE_S - 1, False, True),
            (GRACE_S, False, False),
            (-1, False, True),  # recorded after the caller read the clock
        ):
            with self.subTest(age_s=age_s, started=started):
                draft = Draft(promise(1, age_s, started=started))
                self.assertEqual([], self.reconcile(draft))
                self.assertEqual(kept, bool(draft.promises))

    def test_a_guest_that_runs_without_a_promise_is_counted_where_it_is_held(self):
        self.host.launch(1).set_all('4-7')
        self.host.launch(2)
        draft = Draft()
        self.assertEqual([], self.reconcile(draft))
        held, free = (draft.promises[fake_host.uuid_of(number)] for number in (1, 2))
        self.assertEqual((model.PLACED, (1,), (1,)), (held.origin, held.cpu_nodes, held.mem_nodes))
        self.assertEqual((model.FLOATING, ()), (free.origin, free.cpu_nodes))
        for guest in (held, free):
            self.assertEqual(
                (True, 2, 512 * fake_host.MIB), (guest.started, guest.vcpus, guest.memory_bytes)
            )

    def test_a_guest_whose_groups_bind_its_memory_is_bound_without_a_promise(self):
        for mems, expected in (('1', ((1,), True)), ('0', ((0,), True)), ('0-1', ((1,), False))):
            tree = self.host.launch(1)
            tree.set_all('4-7')
            tree.set_all(mems, 'mems')
            draft = Draft()
            self.reconcile(draft)
            promise = draft.promises[fake_host.uuid_of(1)]
            self.assertEqual(expected, (promise.mem_nodes, promise.bound))
            self.assertEqual((1,), promise.cpu_nodes)

    def test_a_guest_that_floats_though_the_hook_was_there_was_missed(self):
        began_after = self.host.launch(1)
        self.host.launch(2, xml=fake_host.domain_xml(2, extra=domains.OPTED_OUT))
        ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) + 60) * os.sysconf('SC_CLK_TCK')
        for pid in (began_after.pid, began_after.pid + 1):
            services.write_stat(self.root, pid, ticks)
        for hook, missed in ((False, {1: False, 2: False}), (True, {1: True, 2: False})):
            if hook:
                self.host.write(files.HOOKS + '/' + files.OUR_HOOK, '')
            draft = Draft()
            self.reconcile(draft)
            self.assertEqual(
                missed,
                {number: draft.promises[fake_host.uuid_of(number)].missed for number in missed},
            )

    def test_a_hook_in_the_container_of_libvirt_was_there_too(self):
        pid = self.host.launch(1).pid
        ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) + 60) * os.sysconf('SC_CLK_TCK')
        services.write_stat(self.root, pid, ticks)
        self.host.write('proc/%d/root/%s/%s' % (pid, files.HOOKS, files.OUR_HOOK), '')
        draft = Draft()
        self.reconcile(draft)
        self.assertTrue(draft.promises[fake_host.uuid_of(1)].missed)

    def test_a_promise_of_a_guest_that_ran_without_one_is_as_old_as_the_guest(self):
        pid = self.host.launch(1).pid
        services.write_stat(self.root, pid, 100)
        draft = Draft()
        self.reconcile(draft)
        since_ns = 100 * 10**9 // os.sysconf('SC_CLK_TCK')
        self.assertEqual(since_ns, draft.promises[fake_host.uuid_of(1)].since_ns)

    def test_a_guest_that_is_being_decided_on_is_not_counted(self):
        for number in (1, 2):
            self.host.launch(number)
        draft = Draft()
        starting = model.Guest(fake_host.uuid_of(1), fake_host.name_of(1), 2, 512 * fake_host.MIB)
        self.assertEqual([], self.reconcile(draft, starting))
        self.assertEqual({2}, draft.numbers())

    def test_without_libvirts_directory_no_guest_runs(self):
        shutil.rmtree(self.host.path(STATUS))
        draft = Draft(promise(1, started=True), promise(2))
        self.assertEqual([], self.reconcile(draft))
        self.assertEqual({2}, draft.numbers())

    def test_without_the_list_of_guests_nothing_is_dropped(self):
        shutil.rmtree(self.host.path(STATUS))
        self.host.write(STATUS, '')
        draft = Draft(promise(1, started=True))
        with self.assertRaisesRegex(StateError, 'the running guests are unknown'):
            self.reconcile(draft)
        self.assertEqual({1}, draft.numbers())

    def test_a_guest_that_cannot_be_read_is_reported_and_others_are_counted(self):
        self.host.launch(1)
        self.host.write(STATUS + '/odd.xml', '<domstatus pid="1"><domain/></domstatus>')
        self.host.write('proc/1/cmdline', '')
        draft = Draft(problem='it was garbage')
        first, second = self.reconcile(draft)
        self.assertEqual('it was garbage', first)
        self.assertIn('odd.xml', second)
        self.assertEqual({1}, draft.numbers())

    @examples(max_examples=30, deadline=None)
    @given(
        st.dictionaries(
            st.integers(1, 6), st.tuples(st.booleans(), st.integers(0, 2 * GRACE_S)), max_size=6
        ),
        st.sets(st.integers(1, 6)),
    )
    def test_guests_that_run_and_guests_that_start_have_promises(self, promised, running):
        for number in range(1, 7):
            self.host.end(number)
        for number in running:
            xml = fake_host.domain_xml(number)
            domains.write_status(self.root, fake_host.name_of(number), xml, 4000 + number)
        draft = Draft(
            *(promise(number, age_s, started=on) for number, (on, age_s) in promised.items())
        )
        before = dict(draft.promises)
        self.assertEqual([], self.reconcile(draft))
        starting = {n for n, (on, age_s) in promised.items() if not on and age_s < GRACE_S}
        self.assertEqual(running | starting, draft.numbers())
        for uuid in before.keys() & draft.promises.keys():
            self.assertIs(before[uuid], draft.promises[uuid])
        after = dict(draft.promises)
        self.assertEqual([], self.reconcile(draft))
        self.assertEqual(after, draft.promises)
