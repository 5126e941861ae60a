# SPDX-License-Identifier: Apache-2.0
"""Wait for time, signals and descriptors, with signals delivered only while waiting."""

from __future__ import annotations

import collections
import contextlib
import selectors
import signal
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Waits for time, signals and descriptors.

    Signals are unblocked only during a wait. A signal writes its number to a socket that the wait
    polls, so that one arriving just before the wait ends it, too. For the main thread; all other
    threads have to start with these signals blocked.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._numbers, self._written = socket.socketpair()
        for end in (self._numbers, self._written):
            end.setblocking(False)
        self._came: collections.deque[int] = collections.deque()
        self._selector.register(self._numbers, selectors.EVENT_READ)
        self._former = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)

    def watch(self, *descriptors: int) -> None:
        """Let waits also end when one of these descriptors is readable."""
        for fd in descriptors:
            self._selector.register(fd, selectors.EVENT_READ)

    def __call__(self, seconds: float) -> int | None:
        """Wait this many seconds at most; return the signal that came, or None."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            self._selector.select(0 if self._came else max(0.0, seconds))
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with contextlib.suppress(BlockingIOError):
            self._came.extend(self._numbers.recv(64))
        return self._came.popleft() if self._came else None

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._former)
        for resource in (self._selector, self._numbers, self._written):
            resource.close()
