# SPDX-License-Identifier: Apache-2.0
"""The agent's own process: waiting for time, signals and descriptors, and what systemd is told.

systemd is notified by the protocol of sd_notify(3), without libsystemd.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import socket
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def blocked() -> Iterator[Waiter]:
    """Yield a :class:`Waiter`.

    Signals are delivered only while it waits, never between two writes.
    """
    with contextlib.ExitStack() as stack:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, former)
        for signal_number in _SIGNALS:
            stack.callback(
                signal.signal, signal_number, signal.signal(signal_number, lambda *_: None)
            )
        yield stack.enter_context(Waiter())


class Waiter:
    """Callable that waits for time, signals and descriptors.

    Signals are unblocked only during a wait. A signal's number is written to a socket that the
    wait polls, so a signal that arrives just before the wait ends it as well. Only for the main
    thread; all other threads must be started with these signals blocked.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._receiver, self._sender = socket.socketpair()
        for wakeup_socket in (self._receiver, self._sender):
            wakeup_socket.setblocking(False)
        #: Numbers of the signals that have arrived and were not yet returned.
        self._pending: collections.deque[int] = collections.deque()
        self._selector.register(self._receiver, selectors.EVENT_READ)
        self._former_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def watch(self, *descriptors: int) -> None:
        """End waits as well when one of these descriptors is readable."""
        for fd in descriptors:
            self._selector.register(fd, selectors.EVENT_READ)

    def __call__(self, seconds: float) -> int | None:
        """Wait for at most this many seconds; return the signal that arrived, or None."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            self._selector.select(0 if self._pending else max(0.0, seconds))
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with contextlib.suppress(BlockingIOError):
            self._pending.extend(self._receiver.recv(64))
        return self._pending.popleft() if self._pending else None

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._former_fd)
        for resource in (self._selector, self._receiver, self._sender):
            resource.close()


READY, STOPPING, WATCHDOG = 'READY=1', 'STOPPING=1', 'WATCHDOG=1'


def notify(*variables: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send variables to the service manager; do nothing if there is none.

    :returns: whether they were sent
    """
    address = environment.get('NOTIFY_SOCKET', '')
    if address[:1] not in ('/', '@'):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(1.0)
            sender.connect('\0' + address[1:] if address[0] == '@' else address)
            sender.sendall('\n'.join(variables).encode('utf-8', 'backslashreplace'))
    except OSError:
        return False
    return True


def watchdog_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return systemd's watchdog timeout for this process [s], or None if there is no watchdog."""
    if environment.get('WATCHDOG_PID', str(os.getpid())) != str(os.getpid()):
        return None
    digits = environment.get('WATCHDOG_USEC', '')
    return int(digits) / 1e6 if is_number(digits) and int(digits) else None
