# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Neutron that answers that there are no ports.

Servers boot with ``networks: none``. Nova still asks for a server's ports when it deletes,
migrates or refreshes one, and which extensions there are. Everything else is answered with 404 and
logged.
"""

import http.server
import json
import sys

from tests.stack.layout import LOOPBACK

EMPTY = ('ports', 'networks', 'subnets', 'floatingips', 'extensions', 'security-groups')


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_GET(self):
        """Answer a listing with an empty list."""
        path = self.path.partition('?')[0].removesuffix('.json').strip('/').split('/')
        if path == ['']:
            self._answer(200, {'versions': [{'id': 'v2.0', 'status': 'CURRENT', 'links': []}]})
        elif len(path) == 2 and path[0] == 'v2.0' and path[1] in EMPTY:
            self._answer(200, {path[1].replace('-', '_'): []})
        else:
            self._refuse()

    def _refuse(self):
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        self.log_message('not here: %s %s %s', self.command, self.path, body[:500])
        self._answer(
            404,
            {
                'NeutronError': {
                    'type': 'NotFound',
                    'detail': '',
                    'message': f'the stand-in has no {self.path}',
                }
            },
        )

    do_POST = do_PUT = do_DELETE = _refuse

    def _answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def server(port):
    """Return the stand-in on that port of the loopback, 0 for a free one."""
    return http.server.ThreadingHTTPServer((LOOPBACK, port), _Handler)


if __name__ == '__main__':
    server(int(sys.argv[1])).serve_forever()
