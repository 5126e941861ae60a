# SPDX-License-Identifier: Apache-2.0
"""Test libvirt's events, which nothing waits for, with its test driver and a fake that hangs."""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import types
import unittest
from unittest import mock

from nova_numa_pmc.host import libvirt_events

try:
    import libvirt
except ImportError:
    libvirt = None

#: For a thread that can act at once; only a failure takes this long.
TIMEOUT_S = 20


class ListenerCase(unittest.TestCase):
    def listen(self, uri='test:///default', module=None):
        self.listener = libvirt_events.Listener(uri, module)
        self.addCleanup(self.listener.close)
        self.listener.start()
        return self.listener

    def until(self, holds):
        """Collect the names of guests with events until the condition holds for all of them."""
        names = set()
        while not holds(names):
            self.assertTrue(
                select.select([self.listener], [], [], TIMEOUT_S)[0],
                (names, self.listener.problem),
            )
            names |= self.listener.pop_names()

    @property
    def works(self):
        return self.listener.problem == libvirt_events.CONNECTED


@unittest.skipUnless(libvirt, 'libvirt-python is not installed')
class RealTest(ListenerCase):
    def test_a_guest_whose_state_changes_is_reported_by_its_name(self):
        self.listen()
        self.until(lambda _: self.works)
        opened = libvirt.open('test:///default')  # type: ignore[attr-defined]
        with contextlib.closing(opened) as connection:
            domain = connection.lookupByName('test')
            domain.suspend()
            self.addCleanup(domain.resume)
            self.until(lambda names: names == {'test'})


class Error(Exception):
    """The exception that the fake raises."""


class Fake(types.SimpleNamespace):
    """libvirt's binding, with a daemon that a test stops, kills and lets send events.

    :ivar runs: an event; while it is not set, the daemon is stopped
    :ivar rounds: each allows one round of the event loop, in which the next of ``acts`` is done
    """

    libvirtError = Error
    VIR_CONNECT_CLOSE_REASON_KEEPALIVE = 2
    VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_ID_TUNABLE = 0, 17

    def __init__(self):
        super().__init__(
            runs=threading.Event(),
            rounds=threading.Semaphore(0),
            opened=0,
            acts=[],
            close_reason=None,
            callbacks={},
        )
        self.runs.set()

    def registerErrorHandler(self, *_):
        pass

    def virEventRegisterDefaultImpl(self):
        pass

    def virEventAddTimeout(self, *_):
        pass

    def openReadOnly(self, _uri):
        self.runs.wait()
        self.opened += 1
        return Connection(self)

    def virEventRunDefaultImpl(self):
        self.rounds.acquire()
        if self.acts:
            self.acts.pop(0)()


class Connection:
    def __init__(self, fake):
        self._fake = fake

    def setKeepAlive(self, *_):
        raise Error('not supported')

    def registerCloseCallback(self, callback, _):
        self._fake.close_reason = lambda reason: callback(self, reason, None)

    def domainEventRegisterAny(self, _domain, number, callback, _opaque):
        self._fake.callbacks[number] = callback

    def close(self):
        pass


class HangingTest(ListenerCase):
    def setUp(self):
        self.fake = Fake()
        self.addCleanup(self.fake.rounds.release, 100)
        self.addCleanup(self.fake.runs.set)

    def act(self, function, *arguments):
        self.fake.acts.append(lambda: function(*arguments))
        self.fake.rounds.release()

    def test_a_daemon_stopped_from_the_start_hangs_until_it_goes_on(self):
        self.fake.runs.clear()
        listener = self.listen(module=self.fake)
        self.assertEqual(libvirt_events.CONNECTING, listener.problem)
        self.fake.runs.set()
        self.until(lambda _: self.works)
        self.assertEqual({0, 17}, set(self.fake.callbacks))
        guest = types.SimpleNamespace(name=lambda: 'g')
        self.act(self.fake.callbacks[17], None, guest, {}, None)
        self.until(lambda names: names == {'g'})

    def test_a_connection_that_is_lost_is_made_again(self):
        with mock.patch.object(libvirt_events, 'RETRY_S', 0.01):
            listener = self.listen(module=self.fake)
            self.until(lambda _: self.works)
            self.fake.runs.clear()
            self.act(lambda: self.fake.close_reason(2))
            self.until(lambda _: listener.problem == libvirt_events.UNRESPONSIVE)
            self.fake.runs.set()
            self.until(lambda _: self.works)
        self.assertEqual(2, self.fake.opened)

    def test_without_the_libvirt_binding_the_problem_says_so(self):
        with mock.patch.dict(sys.modules, {'libvirt': None}):
            listener = self.listen()
            self.until(lambda _: listener.problem == libvirt_events.NOT_INSTALLED)
