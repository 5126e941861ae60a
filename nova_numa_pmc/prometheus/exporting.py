# SPDX-License-Identifier: Apache-2.0
"""Show each tick to Prometheus, where the operator wants it: over HTTP, from a thread.

The loop leaves a finished tick and goes on; what is made of it is made in the thread that
serves a scrape. Without prometheus_client, or where the address can't be had, the agent goes on
without it.
"""

from __future__ import annotations

import ipaddress
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.agent.troubles import Troubles
from nova_numa_pmc.exceptions import ExportError, SettingsError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.ticking import Tick
    from nova_numa_pmc.prometheus.endpoint import Endpoint

#: Longest path of a Unix socket (sun_path without its NUL, unix(7)).
_PATH_MAX_BYTES = 107
_STAGE = 'serving metrics'


class Address(Record):
    """Where metrics are served: a Unix socket at ``path``, else TCP on an IP address.

    :param port: 0: any that is free (tests)
    """

    path: str = ''
    host: str = ''
    port: int = 0

    def __str__(self) -> str:
        if self.path:
            return 'unix:' + self.path
        return ('[%s]:%d' if ':' in self.host else '%s:%d') % (self.host, self.port)


class Options(Record):
    """What is shown, and where.

    :param address: where; None: nowhere
    :param guests: with names and uuids of guests
    """

    address: Address | None = None
    guests: bool = False


class Shown(Record):
    """What a scrape is made of.

    :param guests: as in :class:`Options`
    :param ticks: how many there have been, and the ``seconds`` that all of them took
    """

    tick: Tick
    guests: bool
    ticks: int
    seconds: float


def parse(text: str, remote: bool) -> Address | None:
    """Parse the option ``metrics``: HOST:PORT or unix:PATH.

    Hosts are addresses: a name would be asked of a resolver, which may not answer.

    :param remote: whether others than this host may reach it
    :returns: None: '' was given
    :raises SettingsError: it is neither, or would be reached from elsewhere
    """
    kind, _, path = text.partition(':')
    if not text:
        return None
    if kind == 'unix':
        if not path.startswith('/') or '\0' in path or len(path.encode()) > _PATH_MAX_BYTES:
            raise SettingsError(
                '[agent] metrics: %.120r: unix: and an absolute path of at most '
                '%d bytes' % (text, _PATH_MAX_BYTES)
            )
        return Address(path)
    host, _, port = text.rpartition(':')
    try:
        address = ipaddress.ip_address({'localhost': '127.0.0.1'}.get(host, host.strip('[]')))
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(port)
    except ValueError:
        raise SettingsError(
            '[agent] metrics: %.120r is neither an IP address (or localhost) '
            'with its port nor unix:/a/path' % text
        ) from None
    if not (address.is_loopback or remote):
        raise SettingsError(
            '[agent] metrics: %s: other hosts reach that; set metrics_remote = '
            'true if they are meant to' % text
        )
    return Address('', str(address), int(port))


class Exporter:
    """Serves the last tick where and as the options say.

    It serves nothing before the first one.
    """

    def __init__(self, log: logging.Logger, options: Options | None = None) -> None:
        self._log, self._options = log, options or Options()
        self._troubles = Troubles(log, time.monotonic)
        self._endpoint: Endpoint | None = None
        self._installed = True
        self._ticks, self._seconds = 0, 0.0
        self._shown: Shown  # there before anybody is served

    @property
    def address(self) -> Address | None:
        """Return the address that is served; None: none is."""
        return self._endpoint.address if self._endpoint else None

    def show(self, tick: Tick, seconds: float) -> None:
        """Show a tick from now on; nothing is raised, and nothing computed.

        :param seconds: how long it took
        """
        self._ticks, self._seconds = self._ticks + 1, self._seconds + seconds
        self._shown = Shown(tick, self._options.guests, self._ticks, self._seconds)
        # Again at each tick: an address may come up later than the agent.
        if self._options.address and not self._endpoint and self._installed:
            with self._troubles.stage(_STAGE):
                self._open(self._options.address)

    def reload(self, options: Options) -> None:
        """Go on with other options; the next tick is shown by them."""
        former, self._options = self._options, options
        self._installed = True  # or so it may be by now
        if options.address != former.address:
            self._troubles.forget(_STAGE)
            self.close()

    def _open(self, address: Address) -> None:
        try:
            from nova_numa_pmc.prometheus import endpoint
        except ImportError as error:
            self._installed = False  # looking for it at each tick would be dear
            raise ExportError(
                '%s: install prometheus_client (pip install '
                'nova-numa-pmc[metrics]) and reload; the agent goes on without '
                'metrics' % error
            ) from error
        self._endpoint = endpoint.Endpoint(address, lambda: self._shown, self._log)
        self._log.info('metrics are served at %s', self._endpoint.address)

    def close(self) -> None:
        """Stop serving, within half a second; nothing is raised."""
        if self._endpoint:
            endpoint, self._endpoint = self._endpoint, None
            with self._troubles.stage('ending metrics'):
                endpoint.close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
