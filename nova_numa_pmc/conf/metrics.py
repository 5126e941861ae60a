# SPDX-License-Identifier: Apache-2.0
"""Options of the agent's metrics: ``metrics`` and ``metrics_*`` of the group ``[agent]``."""

from __future__ import annotations

import ipaddress

from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.record import Record

#: Longest path of a Unix socket (sun_path without its NUL, unix(7)).
_PATH_MAX_BYTES = 107


class Address(Record):
    """An address at which metrics are served: a Unix socket, or TCP on an IP address.

    :param path: path of the Unix socket; empty: TCP
    :param port: TCP port; 0: any free port (tests)
    """

    path: str = ''
    host: str = ''
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return 'unix:' + self.path
        return ('[%s]:%d' if ':' in self.host else '%s:%d') % (self.host, self.port)


class MetricsOptions(Record):
    """The options of metrics, checked.

    :param address: where metrics are served; None: nowhere
    :param with_guests: whether to serve metrics of each guest as well, with its name and uuid
    """

    address: Address | None = None
    with_guests: bool = False


def parse(text: str, remote: bool) -> Address | None:
    """Parse the option ``metrics``: HOST:PORT or unix:PATH.

    HOST must be an address: a name would need a resolver, which may not answer.

    :param remote: whether other hosts may reach the address
    :returns: the address; None: the text is empty
    :raises OptionsError: the text has another form, or other hosts could reach the address
    """
    kind, _, path = text.partition(':')
    if not text:
        return None
    if kind == 'unix':
        if not path.startswith('/') or '\0' in path or len(path.encode()) > _PATH_MAX_BYTES:
            raise OptionsError(
                '[agent] metrics: %.120r: expected unix: and an absolute path of at most %d '
                'bytes' % (text, _PATH_MAX_BYTES)
            )
        return Address(path)
    host, _, port = text.rpartition(':')
    try:
        address = ipaddress.ip_address({'localhost': '127.0.0.1'}.get(host, host.strip('[]')))
        if not (is_number(port) and 0 < int(port) < 65536):
            raise ValueError(port)
    except ValueError:
        raise OptionsError(
            '[agent] metrics: %.120r is neither an IP address (or localhost) '
            'with its port nor unix:/a/path' % text
        ) from None
    if not (address.is_loopback or remote):
        raise OptionsError(
            '[agent] metrics: %s: other hosts can reach that: set metrics_remote = true if they '
            'are meant to' % text
        )
    return Address('', str(address), int(port))
