# SPDX-License-Identifier: Apache-2.0
"""Answer scrapes over TCP or a Unix socket, each in a thread of its own.

This module needs prometheus_client.
"""

from __future__ import annotations

import os
import socket
import socketserver
import stat
import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import MetricsHandler

from nova_numa_pmc.agent.metrics import families
from nova_numa_pmc.exceptions import ExportError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any

    from nova_numa_pmc.agent.metrics.scrape import Scrape
    from nova_numa_pmc.conf.metrics import Address

    _Request = socket.socket | tuple[bytes, socket.socket]

#: Maximum number of simultaneous scrapes; further connections are closed.
_SCRAPES_MAX = 8
#: A client that neither sends nor reads anything for this long is dropped [s].
_CLIENT_TIMEOUT_S = 10.0
#: Mode of the Unix socket; its group may read metrics.
_MODE = 0o660


class _Handler(MetricsHandler):
    timeout = _CLIENT_TIMEOUT_S
    server_version, sys_version = 'nova-numa-agent', ''


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A threaded server that, unlike that of http.server, resolves no name when it binds."""

    daemon_threads, block_on_close = True, False
    allow_reuse_address = True

    def __init__(
        self,
        address: Any,  # of the server's family; TCPServer's type does not allow a path
        handler: Callable[[Any, Any, _Server], socketserver.BaseRequestHandler],
        log: logging.Logger,
    ) -> None:
        self._log = log
        self._slots = threading.BoundedSemaphore(_SCRAPES_MAX)
        super().__init__(address, handler, bind_and_activate=False)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)  # when out of descriptors, this would otherwise be a busy loop
            raise

    def process_request(self, request: _Request, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: _Request, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: _Request, client_address: Any) -> None:
        self._log.debug('a scrape failed', exc_info=True)  # usually, the client has gone away


class _Inet6Server(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        host: Any
        host, port = self.server_address[:2]
        # Only this turns the interface in a link-local address into a scope id.
        scoped: Any = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0][4]
        self.server_address = scoped
        super().server_bind()


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        _remove_stale(str(self.server_address))
        super().server_bind()
        # No client can connect before the server listens.
        os.chmod(str(self.server_address), _MODE)


class Endpoint:
    """Serves metrics at an address from construction until :meth:`close`.

    :param latest: returns the values of the last tick
    :ivar address: the address, with the port that is in use if any free port was requested

    :raises ExportError: the address is not available
    """

    def __init__(
        self, address: Address, latest: Callable[[], Scrape], log: logging.Logger
    ) -> None:
        registry = CollectorRegistry()
        registry.register(families.Collector(latest, log))
        ProcessCollector(registry=registry)
        kind = _UnixServer if address.path else _Inet6Server if ':' in address.host else _Server
        self._server = kind(
            address.path or (address.host, address.port), _Handler.factory(registry), log
        )
        self._path = address.path
        self._socket_identity: tuple[int, int] | None = None
        try:
            self._server.server_bind()
            self._socket_identity = _identity(address.path) if address.path else None
            self._server.server_activate()
            # The thread inherits the signal mask of the loop, which blocks signals and waits.
            threading.Thread(
                target=self._server.serve_forever, name='metrics', daemon=True
            ).start()
        except BaseException as error:
            self._close()  # otherwise connections would stay unanswered
            if isinstance(error, OSError):
                raise ExportError(
                    '[agent] metrics: %s: %s' % (address, error.strerror or error)
                ) from error
            raise
        self.address = (
            address if address.path else address._replace(port=self._server.server_address[1])
        )

    def close(self) -> None:
        """Stop serving, and remove the socket's file."""
        self._server.shutdown()
        self._close()

    def _close(self) -> None:
        self._server.server_close()
        if self._socket_identity and self._socket_identity == _identity(self._path):
            os.unlink(self._path)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the identity (device, inode) of the file at a path, or None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remove_stale(path: str) -> None:
    """Remove a socket that no process serves any more.

    :raises ExportError: the file is not a socket, or another process serves it
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ExportError(
                '[agent] metrics: unix:%s: the file there is not a socket: remove it or choose '
                'another path' % path
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # the queue of the socket is full: another process serves it, slowly
    raise ExportError('[agent] metrics: unix:%s: another process is serving it' % path)
