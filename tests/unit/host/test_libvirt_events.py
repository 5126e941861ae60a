# SPDX-License-Identifier: Apache-2.0
"""Test libvirt's events, which nothing waits for, with its test driver and a fake that hangs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

from nova_numa_pmc.host import libvirt_events
from tests.fixtures import fake_host
from tests.fixtures.clock import Clock

try:
    import libvirt
except ImportError:
    libvirt = None

#: For a thread that can act at once; only a failure takes this long.
TIMEOUT_S = 20


class ListenerCase(unittest.TestCase):
    def listen(self, uri='test:///default', module=None):
        self.clock, self.identities = Clock(), {}
        self.listener = libvirt_events.Listener(self.identities.get, uri, module, self.clock)
        self.addCleanup(self.listener.close)
        self.listener.start()
        return self.listener

    def until(self, holds):
        """Collect events until the condition holds; return all of them."""
        changes = []
        while not holds(changes):
            self.assertTrue(
                select.select([self.listener], [], [], TIMEOUT_S)[0],
                (changes, self.listener.problem),
            )
            changes += self.listener.pop_events()
        return changes


@unittest.skipUnless(libvirt, 'libvirt-python is not installed')
class RealTest(ListenerCase):
    def test_running_guests_are_reported_with_their_xml_and_then_their_changes(self):
        listener = self.listen()
        answer = self.until(lambda changes: [change for change in changes if change.guest])
        self.assertEqual(
            ('test', 2, None), (answer[-1].name, answer[-1].guest.vcpus, answer[-1].identity)
        )
        self.assertEqual(libvirt_events.CONNECTED, listener.problem)
        opened = libvirt.open('test:///default')  # type: ignore[attr-defined]
        with contextlib.closing(opened) as connection:
            self.identities['test'] = 'another'
            domain = connection.lookupByName('test')
            domain.suspend()
            self.until(
                lambda changes: [change for change in changes if change.identity == 'another']
            )
            domain.destroy()
            self.addCleanup(domain.create)
            gone = self.until(lambda changes: [change for change in changes if not change.guest])
            self.assertEqual('test', gone[-1].name)

    def test_the_problem_says_why_there_is_no_connection(self):
        listener = self.listen('test:///no/such/file')
        self.until(lambda _: listener.problem.startswith('libvirt: '))
        self.assertIn('/no/such/file', listener.problem)

    def test_a_daemon_that_never_answers_a_connection_hangs(self):
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as daemon:
            path = os.path.join(directory, 'libvirt-sock-ro')
            daemon.bind(path)
            daemon.listen()
            daemon.settimeout(TIMEOUT_S)
            listener = self.listen('qemu+unix:///system?socket=' + path)
            taken, _ = daemon.accept()
            with taken:
                self.clock.now_s += libvirt_events.CALL_TIMEOUT_S + 1
                self.assertEqual(libvirt_events.UNRESPONSIVE, listener.problem)
                self.assertEqual([], listener.pop_events())
                listener.request_xml('g')
            self.until(lambda _: listener.problem.startswith('libvirt: '))  # the daemon has gone


class Error(Exception):
    """The exception that the fake raises."""


class Domain:
    def __init__(self, name, xml):
        self._name, self._xml = name, xml

    def name(self):
        return self._name

    def XMLDesc(self, _flags):
        return self._xml


class Fake(types.SimpleNamespace):
    """libvirt's binding, with a daemon that a test stops, kills and lets send events.

    :ivar runs: an event; while it is not set, the daemon is stopped
    :ivar asked: an event that is set once the daemon is asked for a domain
    :ivar rounds: each allows one round of the event loop
    """

    libvirtError = Error
    VIR_EVENT_HANDLE_READABLE = VIR_CONNECT_LIST_DOMAINS_ACTIVE = 1
    VIR_CONNECT_CLOSE_REASON_KEEPALIVE = 2
    VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_ID_TUNABLE = 0, 17

    def __init__(self):
        super().__init__(
            runs=threading.Event(),
            asked=threading.Event(),
            rounds=threading.Semaphore(0),
            opened=0,
            domains=[],
            masks=[],
            heard=[],
            close_reason=None,
            callbacks={},
        )
        self.runs.set()

    def registerErrorHandler(self, *_):
        pass

    def virEventRegisterDefaultImpl(self):
        pass

    def virEventAddTimeout(self, *_):
        return 1

    def virEventAddHandle(self, *_):
        return 1

    def virEventRemoveTimeout(self, _):
        pass

    def virEventRemoveHandle(self, _):
        pass

    def openReadOnly(self, _uri):
        self.runs.wait()
        self.opened += 1
        return Connection(self)

    def virEventRunDefaultImpl(self):
        self.rounds.acquire()
        for act in self.heard[:]:
            self.heard.remove(act)
            act()


class Connection:
    def __init__(self, fake):
        self._fake = fake

    def setKeepAlive(self, *_):
        raise Error('not supported')

    def registerCloseCallback(self, callback, _):
        self._fake.close_reason = lambda reason: callback(self, reason, None)

    def domainEventRegisterAny(self, _domain, number, callback, _opaque):
        self._fake.callbacks[number] = callback

    def listAllDomains(self, _flags):
        return self._fake.domains

    def lookupByName(self, name):
        self._fake.asked.set()
        self._fake.runs.wait()
        for domain in self._fake.domains:
            if domain.name() == name:
                return domain
        raise Error('no domain')

    def close(self):
        pass


class HangingTest(ListenerCase):
    def setUp(self):
        self.fake = Fake()
        self.addCleanup(self.fake.rounds.release, 100)
        self.addCleanup(self.fake.runs.set)

    def test_a_daemon_stopped_from_the_start_hangs_until_it_goes_on(self):
        self.fake.runs.clear()
        listener = self.listen(module=self.fake)
        self.assertEqual(libvirt_events.CONNECTING, listener.problem)
        listener.request_xml('g')  # nothing waits
        self.until(lambda _: True)
        self.clock.now_s += libvirt_events.CALL_TIMEOUT_S + 1
        self.assertEqual(libvirt_events.UNRESPONSIVE, listener.problem)
        self.fake.runs.set()
        self.until(lambda _: listener.problem == libvirt_events.CONNECTED)
        self.assertEqual({0, 17}, set(self.fake.callbacks))

    def test_a_daemon_that_stops_while_it_is_asked_hangs_until_it_goes_on(self):
        listener = self.listen(module=self.fake)
        self.until(lambda _: listener.problem == libvirt_events.CONNECTED)
        self.fake.runs.clear()
        self.fake.heard.append(lambda: self.fake.callbacks[17](None, Domain('g', ''), {}, None))
        self.fake.rounds.release()
        self.assertEqual([libvirt_events.GuestEvent('g')], self.until(lambda changes: changes))
        self.assertTrue(self.fake.asked.wait(TIMEOUT_S))
        self.clock.now_s += libvirt_events.CALL_TIMEOUT_S + 1
        self.assertEqual(libvirt_events.UNRESPONSIVE, listener.problem)
        self.fake.domains.append(Domain('g', fake_host.domain_xml(1).decode()))
        self.fake.runs.set()
        changes = self.until(lambda changes: changes)
        self.assertEqual([fake_host.name_of(1)], [change.guest.name for change in changes])
        self.fake.rounds.release()

    def test_a_connection_that_is_lost_is_made_again(self):
        with mock.patch.object(libvirt_events, 'RETRY_S', 0.01):
            listener = self.listen(module=self.fake)
            self.until(lambda _: listener.problem == libvirt_events.CONNECTED)
            self.fake.runs.clear()
            self.fake.heard.append(lambda: self.fake.close_reason(2))
            self.fake.rounds.release()
            self.until(lambda _: listener.problem == libvirt_events.UNRESPONSIVE)
            self.fake.runs.set()
            self.until(lambda _: listener.problem == libvirt_events.CONNECTED)
        self.assertEqual(2, self.fake.opened)

    def test_without_the_libvirt_binding_the_problem_says_so(self):
        with mock.patch.dict(sys.modules, {'libvirt': None}):
            listener = self.listen()
            self.until(lambda _: listener.problem == libvirt_events.NOT_INSTALLED)
