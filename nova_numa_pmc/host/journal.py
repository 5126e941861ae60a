# SPDX-License-Identifier: Apache-2.0
"""Send lines to the system's log, without waiting long for it.

The protocol is that of syslog(3) (RFC 3164) over the datagram socket /dev/log, which journald and
the syslog daemons serve. libc's own syslog() blocks until the daemon reads, and would block
libvirt together with the hook.
"""

from __future__ import annotations

import _socket
import os
import time

#: Severities of syslog(3).
ERROR, WARNING, INFO = 3, 4, 6
_DAEMON = 3 << 3
#: Time for which all lines of one process may wait together [s]: guests that start at the same
#: time can fill the daemon's queue for a moment, and libvirt waits for the hook.
WAIT_MAX_S = 0.2
_LINE_MAX_BYTES = 8192


class JournalLines:
    """The log of one process of the hook.

    :ivar lost: number of lines that could not be sent
    """

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, 'dev/log')
        self._left_s = WAIT_MAX_S
        self.lost = 0

    def log(self, severity: int, message: str) -> None:
        """Log one line; count it as lost if it cannot be sent in time."""
        text = '<%d>%s nova-numa-pmc[%d]: %s' % (
            _DAEMON | severity,
            time.strftime('%b %e %H:%M:%S'),
            os.getpid(),
            message if message.isprintable() else ascii(message)[1:-1],
        )
        sender, began_s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM), time.monotonic()
        try:
            sender.settimeout(self._left_s)
            sender.connect(self._path)
            sender.send(text.encode('utf-8', 'backslashreplace')[:_LINE_MAX_BYTES])
        except OSError:
            self.lost += 1
        finally:
            sender.close()
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))
