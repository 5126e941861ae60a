# SPDX-License-Identifier: Apache-2.0
"""Receive libvirt's guest events in a thread of its own.

``virConnectOpenReadOnly`` can block forever if the daemon is stopped, and any other call can
block until the keepalive gives up. All calls are therefore made in one daemon thread, which is
never joined or waited for; the names of guests with events are taken from a queue, and a pipe
announces them. When the thread is started, the signals that the process waits for must be blocked,
because a thread inherits the signal mask of its creator.

An event only says that a guest may have changed: what the guest then is, its status file says,
here as everywhere else, and the next tick finds what no event announced. The thread needs
libvirt-python, and imports it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import threading
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.core.finding import install_remedy

if TYPE_CHECKING:
    from libvirt import virConnect, virDomain

URI = 'qemu:///system'
#: Events that announce a guest's change; those that an old binding lacks are left out.
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
#: Time between attempts to connect [s]; until one succeeds, ticks find the changes.
RETRY_S = 5.0
#: Longest time that a round of libvirt's event loop waits.
_ROUND_MAX_MS = 1000

CONNECTED, CONNECTING = '', 'not connected yet'
UNRESPONSIVE = 'libvirt does not answer'
NOT_INSTALLED = 'libvirt-python is not installed: %s' % install_remedy('python3-libvirt')


class Listener:
    """Receives libvirt's events in a thread, which queues the guests' names.

    :param module: libvirt's binding (for tests), or None to import it
    """

    def __init__(self, uri: str = URI, module: Any = None) -> None:
        self._uri = uri
        self._libvirt = module
        #: Why no events arrive from libvirt; :data:`CONNECTED` if they do.
        self.problem: str = CONNECTING
        self._names: collections.deque[str] = collections.deque()
        self._wakeup_fd, self._wakeup_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread; the signals that the process waits for must be blocked."""
        threading.Thread(target=self._run, name='libvirt', daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable once there are events."""
        return self._wakeup_fd

    def pop_names(self) -> set[str]:
        """Return the names of the guests with events since the last call, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakeup_fd, 4096):
                pass
        names = set()
        while self._names:
            names.add(self._names.popleft())
        return names

    def close(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._ended.set()

    # All methods below run in the thread.

    def _run(self) -> None:
        try:
            libvirt = self._libvirt or importlib.import_module('libvirt')
        except ImportError:
            self._set_problem(NOT_INSTALLED)
            return
        libvirt.registerErrorHandler(lambda *_: None, None)  # its default writes to standard error
        libvirt.virEventRegisterDefaultImpl()
        # It ends a round of libvirt's event loop, which has no timeout of its own.
        libvirt.virEventAddTimeout(_ROUND_MAX_MS, lambda *_: None, None)
        while not self._ended.is_set():
            try:
                self._listen(libvirt, libvirt.openReadOnly(self._uri))
            except Exception as error:  # libvirt's, and whatever else an unknown binding raises
                self._set_problem('libvirt: %s' % str(error)[:120])
            self._ended.wait(RETRY_S)

    def _listen(self, libvirt: Any, connection: virConnect) -> None:
        """Receive events until the connection is lost."""
        closed: list[int] = []
        with contextlib.suppress(libvirt.libvirtError):
            connection.setKeepAlive(KEEPALIVE_S, KEEPALIVE_COUNT)
        connection.registerCloseCallback(lambda _, reason, __: closed.append(reason), None)
        for name in EVENTS:
            event_id = getattr(libvirt, 'VIR_DOMAIN_EVENT_ID_' + name, None)
            if event_id is not None:
                with contextlib.suppress(libvirt.libvirtError):
                    connection.domainEventRegisterAny(None, event_id, self._on_event, None)
        self._set_problem(CONNECTED)
        while not (closed or self._ended.is_set()):
            libvirt.virEventRunDefaultImpl()
        is_silent = libvirt.VIR_CONNECT_CLOSE_REASON_KEEPALIVE in closed
        self._set_problem(UNRESPONSIVE if is_silent else 'libvirt has closed the connection')
        with contextlib.suppress(libvirt.libvirtError):
            connection.close()

    def _on_event(self, _: virConnect, domain: virDomain, *__: object) -> None:
        """Queue the guest of an event of any kind."""
        self._names.append(domain.name())
        self._wake()

    def _set_problem(self, text: str) -> None:
        self.problem = ''.join(character if character.isprintable() else ' ' for character in text)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the reader is awake anyway
            os.write(self._wakeup_write_fd, b'.')
