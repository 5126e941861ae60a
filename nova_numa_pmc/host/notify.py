# SPDX-License-Identifier: Apache-2.0
"""Notify systemd of the service's state by the protocol of sd_notify(3), without libsystemd."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

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
