# SPDX-License-Identifier: Apache-2.0
"""Send lines to the system's log, without waiting long for it.

The protocol is that of syslog(3) (RFC 3164) over the datagram socket /dev/log, which journald and
the syslog daemons serve. libc's own syslog() blocks until the daemon reads, and would block
libvirt together with the hook.
"""

from __future__ import annotations

import _socket
import os
import select
import time

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable

#: Severities of syslog(3).
ERROR, WARNING, INFO = 3, 4, 6
_DAEMON = 3 << 3
#: The time that all lines of one process may wait in total [s]. Guests that start at the same time
#: can fill the daemon's queue for a moment.
WAIT_MAX_S = 0.2
_LINE_MAX_BYTES = 8192


def _wait(sender: _socket.socket, limit_s: float) -> float:
    """Wait until the log can take a line or the time is up; return the time waited [s]."""
    began_s = time.monotonic()
    poll = select.poll()
    poll.register(sender, select.POLLOUT)
    poll.poll(limit_s * 1e3)
    return time.monotonic() - began_s


class JournalLines:
    """The log of one process of the hook.

    :ivar lost: number of lines that could not be sent
    """

    def __init__(self, root: str, wait: Callable[[_socket.socket, float], float] = _wait) -> None:
        self._path = os.path.join(root, 'dev/log')
        self._wait = wait
        self._left_s = WAIT_MAX_S
        self.lost = 0

    def log(self, severity: int, message: str) -> None:
        """Log one line; count it as lost if it cannot be sent in the time that is left."""
        text = '<%d>%s nova-numa-pmc[%d]: %s' % (
            _DAEMON | severity,
            time.strftime('%b %e %H:%M:%S'),
            os.getpid(),
            message if message.isprintable() else ascii(message)[1:-1],
        )
        try:
            sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            try:
                sender.setblocking(False)
                sender.connect(self._path)
                self._send(sender, text.encode('utf-8', 'backslashreplace')[:_LINE_MAX_BYTES])
            finally:
                sender.close()
        except OSError:
            self.lost += 1

    def _send(self, sender: _socket.socket, line: bytes) -> None:
        while True:
            try:
                sender.send(line)
                return
            except BlockingIOError:
                if self._left_s <= 0:
                    raise
            self._left_s -= self._wait(sender, self._left_s)
