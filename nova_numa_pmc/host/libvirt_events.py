# SPDX-License-Identifier: Apache-2.0
"""Receive libvirt's guest events in a thread of its own, and read the guests that they describe.

``virConnectOpenReadOnly`` can block forever if the daemon is stopped, and any other call can
block until the keepalive gives up. All calls are therefore made in one daemon thread, which is
never joined or waited for; its events are taken from a queue, and a pipe announces them. When the
thread is started, the signals that the process waits for must be blocked, because a thread
inherits the signal mask of its creator.

libvirt reports changes of lifecycle, devices, balloon, tunables (vcpupin, emulatorpin, blkiotune)
and metadata, and jobs that end. It reports nothing when a job begins, a vCPU is plugged or
numatune is called (https://libvirt.org/html/libvirt-libvirt-domain.html). The thread needs
libvirt-python, and imports it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.core.finding import install_remedy
from nova_numa_pmc.exceptions import CpusetError, DomainError, GuestGone
from nova_numa_pmc.host import allowed, guests
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from libvirt import virConnect, virDomain

    from nova_numa_pmc import model
    from nova_numa_pmc.host.files import Identity

URI = 'qemu:///system'
#: Events after which a domain's XML is read; those that an old binding lacks are left out.
EVENTS = (
    'LIFECYCLE',
    'DEVICE_ADDED',
    'DEVICE_REMOVED',
    'BALLOON_CHANGE',
    'TUNABLE',
    'JOB_COMPLETED',
    'METADATA_CHANGE',
)
#: The daemon is pinged after this much silence [s].
KEEPALIVE_S = 5
#: The connection is given up after this many lost pings.
KEEPALIVE_COUNT = 3
#: First and longest time between attempts to connect [s].
RETRY_S, RETRY_MAX_S = 1.0, 60.0
#: A call that takes longer than this counts as unanswered [s].
CALL_TIMEOUT_S = 5.0
#: Longest time that a round of libvirt's event loop waits.
_ROUND_MAX_MS = 1000
#: The number of names kept while libvirt does not answer; once it does, all running guests are
#: requested anyway.
_REQUESTED_MAX = 10000

CONNECTED, CONNECTING = '', 'not connected yet'
UNRESPONSIVE = 'libvirt does not answer'
NOT_INSTALLED = 'libvirt-python is not installed: %s' % install_remedy('python3-libvirt')

#: Fields that are taken from the live XML.
_DEFINITION = (
    'vcpus',
    'memory_bytes',
    'vcpus_max',
    'allowed_cpus',
    'page_bytes',
    'locked',
    'devices',
    'iothreads',
    'extra_specs',
    'flavor',
    'preallocated',
    'memory_max_bytes',
    'partition',
)
#: Fields that are taken from the live XML if they are set there, because numad's advice is only in
#: the status file.
_PLACED = ('placed_by', 'numatune_nodes', 'mem_bound', 'pinned_cpus', 'pins')
#: State of a guest of whose process only the pid is known; such a guest is not moved.
_STATE_UNKNOWN = 'unknown'


class GuestEvent(Record):
    """An event about a domain, with its guest once the live XML has been read.

    :param guest: the guest that the XML describes, without its process; None if the XML has not
        been read yet or cannot be
    :param identity: identity of the domain's status file before libvirt was queried
    """

    name: str
    guest: model.Guest | None = None
    identity: tuple[int, ...] | None = None


class Listener:
    """Receives libvirt's events in a thread, which queues them.

    :param identify: function that returns the identity of a domain's status file by the domain's
        name, or None if there is no such file
    :param module: libvirt's binding (for tests), or None to import it
    """

    def __init__(
        self,
        identify: Callable[[str], tuple[int, ...] | None],
        uri: str = URI,
        module: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identify = identify
        self._uri = uri
        self._libvirt = module
        self._clock = clock
        self._problem: str = CONNECTING
        self._busy_since_s: float | None = None
        self._events: collections.deque[GuestEvent] = collections.deque()
        self._requested: collections.deque[str] = collections.deque(maxlen=_REQUESTED_MAX)
        self._wakeup_fd, self._wakeup_write_fd = _pipe()
        self._request_fd, self._request_write_fd = _pipe()
        self._ended = threading.Event()
        self._closed: list[int] = []

    def start(self) -> None:
        """Start the thread; the signals that the process waits for must be blocked."""
        threading.Thread(target=self._run, name='libvirt', daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable once there are events."""
        return self._wakeup_fd

    def pop_events(self) -> list[GuestEvent]:
        """Return the events since the last call, without waiting."""
        _drain(self._wakeup_fd)
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._events.popleft())
        return events

    def request_xml(self, name: str) -> None:
        """Request a domain's live XML; :meth:`pop_events` returns it later, or never."""
        self._requested.append(name)
        _poke(self._request_write_fd)

    @property
    def problem(self) -> str:
        """Return why no events arrive from libvirt, or :data:`CONNECTED` if they do."""
        since_s = self._busy_since_s
        if since_s is not None and self._clock() - since_s > CALL_TIMEOUT_S:
            return UNRESPONSIVE
        return self._problem

    def close(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._ended.set()
        _poke(self._request_write_fd)

    # All methods below run in the thread.

    def _run(self) -> None:
        try:
            libvirt = self._libvirt or importlib.import_module('libvirt')
        except ImportError:
            self._set_problem(NOT_INSTALLED)
            return
        self._libvirt = libvirt
        libvirt.registerErrorHandler(lambda *_: None, None)  # its default writes to standard error
        libvirt.virEventRegisterDefaultImpl()
        # Both of these end a round of libvirt's event loop, which has no timeout of its own.
        timer = libvirt.virEventAddTimeout(_ROUND_MAX_MS, lambda *_: None, None)
        handle = libvirt.virEventAddHandle(
            self._request_fd,
            libvirt.VIR_EVENT_HANDLE_READABLE,
            lambda *_: _drain(self._request_fd),
            None,
        )
        wait_s = RETRY_S
        while not self._ended.is_set():
            try:
                self._busy_since_s = self._clock()
                connection = libvirt.openReadOnly(self._uri)
                wait_s = RETRY_S
                self._set_problem(self._listen(connection))
            except libvirt.libvirtError as error:
                self._set_problem('libvirt: %s' % str(error)[:120])
            except Exception as error:  # an unknown binding may raise anything; try again
                self._set_problem('libvirt: %s: %s' % (type(error).__name__, str(error)[:100]))
            self._ended.wait(wait_s)
            wait_s = min(2 * wait_s, RETRY_MAX_S)
        libvirt.virEventRemoveTimeout(timer)
        libvirt.virEventRemoveHandle(handle)

    def _listen(self, connection: virConnect) -> str:
        """Receive events until the connection is lost; return why it was lost."""
        libvirt = self._libvirt
        self._closed = []
        with contextlib.suppress(libvirt.libvirtError):
            connection.setKeepAlive(KEEPALIVE_S, KEEPALIVE_COUNT)
        connection.registerCloseCallback(lambda _, reason, __: self._closed.append(reason), None)
        for name in EVENTS:
            event_id = getattr(libvirt, 'VIR_DOMAIN_EVENT_ID_' + name, None)
            if event_id is not None:
                with contextlib.suppress(libvirt.libvirtError):
                    connection.domainEventRegisterAny(None, event_id, self._on_event, None)
        # After registering, so that no guest that starts meanwhile is missed.
        self._requested.extend(
            domain.name()
            for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        )
        self._set_problem(CONNECTED)
        while not (self._closed or self._ended.is_set()):
            self._read_requested_xml(connection)
            self._busy_since_s = None
            libvirt.virEventRunDefaultImpl()
        self._busy_since_s = self._clock()
        with contextlib.suppress(libvirt.libvirtError):
            connection.close()
        return (
            UNRESPONSIVE
            if libvirt.VIR_CONNECT_CLOSE_REASON_KEEPALIVE in self._closed
            else 'libvirt has closed the connection'
        )

    def _on_event(self, _: virConnect, domain: virDomain, *__: object) -> None:
        """Queue an event of any kind; libvirt is only queried for the XML after this returns."""
        name = domain.name()
        self._queue(GuestEvent(name))
        self._requested.append(name)

    def _read_requested_xml(self, connection: virConnect) -> None:
        """Read the live XML of the requested domains."""
        libvirt = self._libvirt
        names = set()
        with contextlib.suppress(IndexError):
            while True:
                names.add(self._requested.popleft())
        for name in sorted(names):
            self._busy_since_s = self._clock()
            identity, guest = self._identify(name), None
            # If the domain is gone or its XML is not understood, the event has no guest.
            with contextlib.suppress(libvirt.libvirtError, DomainError):
                guest = guests.parse(connection.lookupByName(name).XMLDesc(0).encode())
            self._queue(GuestEvent(name, guest, identity))

    def _queue(self, event: GuestEvent) -> None:
        self._events.append(event)
        _poke(self._wakeup_write_fd)

    def _set_problem(self, text: str) -> None:
        self._busy_since_s = None  # first, because the thread that is woken reads the problem
        self._problem = ''.join(
            character if character.isprintable() else ' ' for character in text
        )
        _poke(self._wakeup_write_fd)


def _pipe() -> tuple[int, int]:
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def _poke(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # full: the reader is awake anyway
        os.write(fd, b'.')


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


class LiveGuests:
    """Reads the running guests from libvirt's live XML if libvirt answers, else from status files.

    libvirt's API is the documented source of a guest's definition, but does not report the guest's
    process: the pid, the threads and a job that has just begun are only in the status file, which
    can be read without waiting. So the status file shows *that* a guest runs and what its process
    does, and libvirt's XML shows what the guest *is*. The XML is only used if libvirt was queried
    after this version of the status file was written. Both then contain the same document, whereas
    after a change without an event the status file is the newer one.

    :param listener: receiver of libvirt's events, or None to only read status files
    """

    def __init__(self, root: str = '/', listener: Listener | None = None) -> None:
        self._root = root
        self._listener = listener
        self._status_files = guests.StatusFiles(root)
        self._grants = allowed.Grants(root)
        self._live: dict[str, GuestEvent] = {}  # by name
        #: {name: the guest in the status file, that in the live XML, and both merged}
        self._merged: dict[str, tuple[model.Guest, model.Guest, model.Guest]] = {}
        #: {name: identity of the status file for which the XML was last requested}
        self._requested: dict[str, Identity | None] = {}

    def update(self, event: GuestEvent) -> None:
        """Store the guest that libvirt's XML describes."""
        if event.guest is not None:
            self._live[event.name] = event

    def read(self) -> tuple[list[model.Guest], list[str]]:
        """Return (guests sorted by file name, problems), as :meth:`guests.StatusFiles.read`."""
        entries, problems = self._status_files.entries()
        running = []
        for name, identity, guest, problem in entries:
            live = self._live_guest(name, identity)
            if guest is not None:
                guest = guest if live is None else self._merge(name, guest, live)
            elif problem is not None and live is not None:
                # The status file cannot be understood.
                guest, problem = self._from_live_xml(live)
            if guest is not None:
                running.append(guest)
            if problem is not None:
                problems.append(problem)
        names = {name for name, *_ in entries}
        for cache in (self._live, self._requested, self._merged):
            for name in cache.keys() - names:
                del cache[name]
        return guests.without_full_pins(self._grants.apply(running), self._root), problems

    def _live_guest(self, name: str, identity: Identity | None) -> model.Guest | None:
        """Return the guest in libvirt's XML for this version of the status file.

        Otherwise return None and request the XML, once for each version.
        """
        event = self._live.get(name)
        if (
            event is not None
            and event.identity == identity
            and event.guest is not None
            and event.guest.name == name
        ):
            return event.guest
        if self._listener is not None and self._requested.get(name) != identity:
            self._requested[name] = identity
            self._listener.request_xml(name)
        return None

    def _merge(self, name: str, guest: model.Guest, live: model.Guest) -> model.Guest:
        """Return what both descriptions say; the same record as long as both are the same."""
        if live.uuid != guest.uuid:
            return guest  # the XML is of another guest that had this name a moment ago
        before = self._merged.get(name)
        if before is not None and before[0] is guest and before[1] is live:
            return before[2]
        merged = guest._replace(
            **{field: getattr(live, field) for field in _DEFINITION},
            **{field: getattr(live, field) or getattr(guest, field) for field in _PLACED},
        )
        self._merged[name] = guest, live, merged
        return merged

    def _from_live_xml(self, live: model.Guest) -> tuple[model.Guest | None, str | None]:
        """Return (guest, None) from libvirt's XML and its pid file, or (None, problem).

        Both are None if the guest has no process.
        """
        try:
            guest = guests.with_process(live, self._root)
        except GuestGone:
            return None, None
        except CpusetError as error:
            return None, str(error)
        return guest._replace(state=_STATE_UNKNOWN), None
