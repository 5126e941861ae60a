# SPDX-License-Identifier: Apache-2.0
"""Communicate with QEMU's monitor (QMP) over its socket, one command at a time."""

import json
import re
import socket


class QmpError(Exception):
    """QEMU refused a command, or has ended."""


class Qmp:
    """A connection, to be used as a context manager."""

    def __init__(self, path, timeout_s=60):
        """Connect and end the negotiation; raise OSError if no process listens."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        self._socket.connect(str(path))
        self._file = self._socket.makefile('r')
        self._file.readline()
        self('qmp_capabilities')

    def __call__(self, command, **arguments):
        """Run a command and return the answer."""
        text = json.dumps({'execute': command, 'arguments': arguments})
        self._socket.sendall(text.encode() + b'\n')
        for line in self._file:
            answer = json.loads(line)
            if 'error' in answer:
                raise QmpError(f'{command}: {answer["error"]["desc"]}')
            if 'return' in answer:
                return answer['return']
        raise QmpError(f'{command}: QEMU is gone')

    def hmp(self, line):
        """Run a command of the human monitor and return its text."""
        return self('human-monitor-command', **{'command-line': line})

    def ram_blocks(self):
        """Return {name: (offset, bytes)} of the RAM blocks, offsets in QEMU's ram_addr space."""
        blocks = re.findall(
            r'^\s*(\S+)\s+\d+ [KMG]iB\s+(0x\w+)\s+0x\w+\s+(0x\w+)', self.hmp('info ramblock'), re.M
        )
        return {
            name.rpartition('/')[2]: (int(offset, 16), int(size, 16))
            for name, offset, size in blocks
        }

    def close(self):
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def __enter__(self):
        """Return itself."""
        return self

    def __exit__(self, *exc):
        """Close the connection."""
        self.close()
