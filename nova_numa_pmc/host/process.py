# SPDX-License-Identifier: Apache-2.0
"""The agent's own process: waiting for time and signals, and what systemd is told.

systemd is notified by the protocol of sd_notify(3), without libsystemd.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def blocked() -> Iterator[Callable[[float], int | None]]:
    """Block the signals that end a process, and yield a function that waits for one.

    It waits for at most so many seconds, and returns the signal that has arrived, or None.
    Signals are never delivered between two writes. Only for the main thread; all other threads
    must be started inside of the ``with`` block.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield _wait
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _wait(seconds: float) -> int | None:
    received = signal.sigtimedwait(_SIGNALS, max(0.0, seconds))
    return received.si_signo if received else None


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
