# SPDX-License-Identifier: Apache-2.0
"""Guests that Nova counts and the agent has not measured yet are charged."""

import time
from unittest import mock

from nova.virt.libvirt import driver

from nova_numa_pmc.compute import monitor
from nova_numa_pmc.scheduler import hosts, refusals, request
from tests.bench import nova_hosts
from tests.nova import base

#: How long ago the host was audited; Nova saves times in whole seconds.
AGO_S = 10


class ChargeBase(base.NovaTest):
    def audit(self, published=True):
        """Have all hosts send metrics, dated some seconds ago.

        :param published: whether their agents publish the present guests first
        """
        sent_s = time.time() - AGO_S
        with mock.patch.object(monitor.time, 'time', lambda: sent_s):
            for name in self.computes if published else ():
                self.publish(name, 0.1, 0.1, taken_s=sent_s, interval_s=600.0)
            self._run_periodics()

    def charged(self, name):
        """Return (vCPUs charged, the highest pressure that a guest would leave)."""
        asked = request.read(nova_hosts.request_spec(1, 512))
        host = hosts.read(self.host_state(name), asked, time.time())
        return host.arrived_vcpus, refusals.pressure_with(host, asked.guest)


class ArrivalTest(ChargeBase):
    """The scheduler learns of instances from nova-compute's messages."""

    def setUp(self):
        super().setUp()
        self.start_hosts('one')
        self.large, self.small = self.flavor(vcpus=4, memory_mb=1024), self.flavor(vcpus=1)

    def test_a_departure_charges_nothing(self):
        server = self.boot(self.small)
        self.audit()
        _, calm = self.charged('one')
        self._delete_server(server)
        self.assertEqual((0, calm), self.charged('one'))
        self._delete_server(self.boot(self.large))
        self.assertEqual((0, calm), self.charged('one'))

    def test_an_active_guest_is_charged_until_a_publication_includes_it(self):
        self.audit()
        self.boot(self.large)
        vcpus, pressed = self.charged('one')
        self.audit(published=False)
        self.assertEqual((4, pressed), (vcpus, self.charged('one')[1]))
        self.audit()
        self.assertEqual(0, self.charged('one')[0])

    def test_a_guest_in_build_whose_domain_is_published_is_not_charged(self):
        self.audit()
        spawn, in_build = driver.LibvirtDriver.spawn, []

        def spawn_and_audit(*arguments, **named):
            spawn(*arguments, **named)
            self.audit()
            in_build.append(self.charged('one')[0])

        with mock.patch.object(driver.LibvirtDriver, 'spawn', spawn_and_audit):
            self.boot(self.large)
        self.assertEqual(([0], 0), (in_build, self.charged('one')[0]))


class UntrackedArrivalTest(ArrivalTest):
    """The scheduler reads instances from the database at each request, as with several cells."""

    def setUp(self):
        self.flags(track_instance_changes=False, group='filter_scheduler')
        super().setUp()


class DedicatedTest(ChargeBase):
    def setUp(self):
        self.flags(cpu_dedicated_set='0-1,4-5', cpu_shared_set='2-3,6-7', group='compute')
        super().setUp()
        self.start_hosts('one')

    def test_a_newcomer_with_dedicated_cpus_takes_no_shared_core(self):
        self.audit()
        _, calm = self.charged('one')
        self.boot(self.flavor(vcpus=2, hw__cpu_policy='dedicated'))
        self.assertEqual((0, calm), self.charged('one'))
        self.boot(self.flavor(vcpus=3))
        self.assertEqual(3, self.charged('one')[0])
        self.audit()
        self.assertEqual((0, calm), self.charged('one'))


class MigrationTest(ChargeBase):
    def test_a_guest_that_migrates_here_is_charged_until_its_domain_is_published(self):
        self.start_hosts('one', 'two')
        server = self.boot(self.flavor(vcpus=4, memory_mb=1024), host='one')
        self.audit()
        charges, finish = [self.charged('two')[0]], driver.LibvirtDriver.finish_migration

        def audit_and_finish(*arguments, **named):
            charges.append(self.charged('two')[0])
            self.audit()
            charges.append(self.charged('two')[0])
            finish(*arguments, **named)

        with mock.patch.object(driver.LibvirtDriver, 'finish_migration', audit_and_finish):
            self._migrate_server(server)
        self.assertEqual([0, 4, 4], charges)
        self.audit()
        self.assertEqual(0, self.charged('two')[0])
