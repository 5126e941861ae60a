# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus reads what the agent writes, and answers each query that is shipped.

`make test-rules` runs this with the programs that tests/prometheus/run has found.
"""

import functools
import http.server
import json
import logging
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from nova_numa_pmc.agent.agent import Moment
from nova_numa_pmc.agent.metrics import GUESTS_FILE, HOST_FILE, MetricsFile
from tests.fixtures.checkout import TOP
from tests.fixtures.full_tick import FULL

SERVER = 'http://127.0.0.1:19878'
WAIT_S = 120
#: Queries that are right to have no answer here: nothing is wrong on this host, its agent has run
#: for seconds, and its guest may not leave.
SILENT = re.compile(r'> 120|> 900|> 0\.1$|> 1$|> 0\)?$|offset|== 1|> 5$|> 3$|< 0\.7|0\.85')


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


def queries():
    """Yield (where it is, query) of all that are shipped."""
    for path in sorted((TOP / 'etc/grafana').glob('*.json')):
        for panel in json.loads(path.read_text())['panels']:
            for target in panel.get('targets', ()):
                text = target['expr'].replace('$instance', 'lab01')
                text = re.sub(r'\$__(range|rate_interval)', '1m', text)
                yield '%s: %s' % (path.name, panel['title']), text
    guide = (TOP / 'doc/source/admin/fleet.rst').read_text()
    block = guide.partition('a figure for each guest and each host. These are::')[2]
    lines = []
    for line in [*block.splitlines()[2:], '    #']:
        if line.startswith('    #') or not line.startswith('    '):
            if lines:
                yield 'fleet.rst', ' '.join(lines)
            lines = []
            if not line.startswith('    '):
                break
        else:
            lines.append(line.strip())


def ask(path, **parameters):
    """Return what Prometheus answers, or its error, as plain data."""
    try:
        with urllib.request.urlopen(
            '%s/api/v1/%s?%s' % (SERVER, path, urllib.parse.urlencode(parameters)), timeout=30
        ) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


@unittest.skipUnless(os.environ.get('PROMETHEUS'), 'make test-rules finds or gets Prometheus')
class QueriesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        top = tempfile.TemporaryDirectory()
        cls.addClassCleanup(top.cleanup)
        now = time.time()
        metrics = MetricsFile(logging.getLogger(__name__), top.name)
        metrics.write(FULL._replace(now=Moment(0, 0, now)), 0.25)
        served = os.path.join(top.name, 'metrics')
        with open(os.path.join(served, 'metrics.txt'), 'w', encoding='utf-8') as whole:
            for name in (HOST_FILE, GUESTS_FILE):
                with open(os.path.join(served, name), encoding='utf-8') as file:
                    whole.write(file.read())
        handler = functools.partial(_Quiet, directory=served)
        web = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        cls.addClassCleanup(web.server_close)
        cls.addClassCleanup(web.shutdown)
        conf = os.path.join(top.name, 'prometheus.yml')
        with open(conf, 'w', encoding='utf-8') as file:
            json.dump(
                {
                    'global': {'scrape_interval': '1s', 'evaluation_interval': '1s'},
                    'rule_files': [str(TOP / 'etc/prometheus/nova-numa-pmc.rules.yml')],
                    'scrape_configs': [
                        {
                            'job_name': 'node',
                            'metrics_path': '/metrics.txt',
                            'static_configs': [
                                {
                                    'targets': ['127.0.0.1:%d' % web.server_port],
                                    'labels': {'instance': 'lab01'},
                                }
                            ],
                        }
                    ],
                },
                file,
            )
        server = subprocess.Popen(
            [
                os.environ['PROMETHEUS'],
                '--config.file=' + conf,
                '--storage.tsdb.path=' + os.path.join(top.name, 'data'),
                '--web.listen-address=' + SERVER.rpartition('/')[2],
                '--log.level=error',
            ]
        )
        cls.addClassCleanup(server.wait)
        cls.addClassCleanup(server.terminate)
        deadline = time.monotonic() + WAIT_S
        # Two scrapes, from which rates can be computed.
        while not cls._scrapes() > 2:
            if time.monotonic() > deadline or server.poll() is not None:
                raise AssertionError('Prometheus has not scraped within %d s' % WAIT_S)
            time.sleep(0.5)

    @staticmethod
    def _scrapes():
        try:
            found = ask('query', query='count_over_time(nova_numa_guests[1m])')['data']['result']
        except (OSError, ValueError):  # it is starting, and says so in plain text
            return 0
        return int(found[0]['value'][1]) if found else 0

    def test_each_query_is_answered(self):
        asked = list(queries())
        self.assertLess(50, len(asked))
        for where, query in asked:
            with self.subTest(where, query=query):
                answer = ask('query', query=query)
                self.assertEqual('success', answer['status'], answer)
                if not SILENT.search(query):
                    self.assertTrue(answer['data']['result'])

    def test_each_rule_is_evaluated_without_an_error(self):
        groups = ask('rules')['data']['groups']
        rules = [rule for group in groups for rule in group['rules']]
        self.assertLess(10, len(rules))
        self.assertEqual([], [rule for rule in rules if rule.get('lastError')])
