# SPDX-License-Identifier: Apache-2.0
"""Send one line to the system's log, without waiting long for it.

The protocol is syslog(3)'s (RFC 3164) over the datagram socket /dev/log, which
journald and the syslog daemons serve. libc's own syslog() waits for as long as
the daemon does not read, and libvirt would wait with us.
"""

from __future__ import annotations

import os
import time

import _socket

#: Severities of syslog(3).
ERROR, WARNING, INFO = 3, 4, 6
_DAEMON = 3 << 3
#: Starts at one time can fill the daemon's queue for a moment.
_PATIENCE_S = 0.2


def log(root, severity, message):
    """Log one line; nothing is raised if that can't be done."""
    text = '<%d>%s nova-numa-pmc[%d]: %s' % (
        _DAEMON | severity, time.strftime('%b %e %H:%M:%S'), os.getpid(),
        message if message.isprintable() else ascii(message)[1:-1])
    try:
        sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            sender.settimeout(_PATIENCE_S)
            sender.connect(os.path.join(root, 'dev/log'))
            sender.send(text.encode('utf-8', 'backslashreplace')[:8192])
        finally:
            sender.close()
    except OSError:
        pass
