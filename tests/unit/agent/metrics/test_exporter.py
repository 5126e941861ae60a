# SPDX-License-Identifier: Apache-2.0
"""Metrics are served to Prometheus over real sockets, and no client can disturb the agent."""

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import model, sample_records
from nova_numa_pmc.agent.metrics.exporter import Exporter
from nova_numa_pmc.agent.tick import Moment, Tick
from nova_numa_pmc.conf import metrics as metrics_conf
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.host import files
from nova_numa_pmc.moves import executor
from nova_numa_pmc.state import publication
from tests.cases.agent import AgentCase
from tests.fixtures.checkout import TOP

try:
    import prometheus_client  # noqa: F401 -- an extra
except ImportError:
    raise unittest.SkipTest('prometheus_client is not installed')

LOG = logging.getLogger('nova_numa_pmc.agent')
DASHBOARD = TOP / 'etc/grafana/nova-numa-pmc.json'
GUIDE = TOP / 'doc/source/admin/metrics.rst'
ANY_PORT = metrics_conf.Address('', '127.0.0.1', 0)
NOW = Moment(5 * 10**9, 6 * 10**9, 1700000000.0)
GUEST = sample_records.GuestSample(
    'e4a1',
    'instance-1',
    'guests',
    'counted',
    1.5,
    0.25,
    ((0, 1.5),),
    ((0, 4096), (1, 8192)),
    1e6,
    1e5,
    0.1,
    7e7,
)
NODES = tuple(
    sample_records.NodeSample(
        node,
        4.5,
        3.25,
        0.72,
        2e9,
        2e10,
        0.1,
        0.05,
        0.72,
        1e6,
        2e5,
        0.17,
        1.5,
        True,
        0.5,
        0.25,
        0.3,
        1 << 33,
        1 << 32,
        1 << 31,
    )
    for node in (0, 1)
)
FULL = Tick(
    NOW,
    sample_records.Sample(1700000000.0, 5.0, 'guests', NODES, (GUEST,), ('no uncore',)),
    model.Topology((), (), ()),
    None,
    (model.Guest('e4a1', 'instance-1', 2, 1 << 30),),
    publication.Publication(
        1.0,
        5.0,
        model.HostView(
            tuple(model.NodeView(node, 4.5, 6, 1 << 34, 1 << 31, 1.5, 3) for node in (0, 1)), ()
        ),
        (0.17, 0.17),
        'guests',
    ),
    executor.MoveTotals({('move', 'made'): 3, ('swap', 'taken_back'): 1}, 1 << 30, 1),
    2,
    events_source='libvirt',
)
EMPTY = Tick(NOW)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__('localhost', timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def get(address, path='/metrics', method='GET', **headers):
    """Send a request to an address; return (status, text)."""
    connection = (
        UnixConnection(address.path)
        if address.path
        else http.client.HTTPConnection(address.host, address.port, timeout=20)
    )
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def values(text):
    """Parse Prometheus' text format into {name with labels: value}."""
    return {
        line.rpartition(' ')[0]: float(line.rpartition(' ')[2])
        for line in text.splitlines()
        if not line.startswith('#')
    }


def names(text):
    """List the metrics that have values."""
    return {name.partition('{')[0] for name in values(text)}


class ParseTest(unittest.TestCase):
    def test_an_address_is_read_as_path_host_and_port(self):
        for text, remote, wanted in (
            ('', False, None),
            ('127.0.0.1:19877', False, ('', '127.0.0.1', 19877)),
            ('localhost:80', False, ('', '127.0.0.1', 80)),
            ('[::1]:19877', False, ('', '::1', 19877)),
            ('0.0.0.0:19877', True, ('', '0.0.0.0', 19877)),
            (
                'unix:/run/nova-numa-pmc/metrics.sock',
                False,
                ('/run/nova-numa-pmc/metrics.sock', '', 0),
            ),
        ):
            with self.subTest(text):
                address = metrics_conf.parse(text, remote)
                self.assertEqual(wanted and metrics_conf.Address(*wanted), address)
                if address and 'localhost' not in text:
                    self.assertEqual(text, str(address))

    def test_an_address_that_cannot_be_used_is_refused(self):
        for text, text_part in (
            ('0.0.0.0:19877', 'metrics_remote'),
            ('[::]:19877', 'metrics_remote'),
            ('192.0.2.1:1', 'metrics_remote'),
            ('19877', 'neither'),
            ('x:1', 'neither'),
            ('127.0.0.1:', 'neither'),
            ('127.0.0.1:0', 'neither'),
            ('127.0.0.1:65536', 'neither'),
            ('127.0.0.1:-1', 'neither'),
            ('unix:', 'absolute'),
            ('unix:run/x', 'absolute'),
            ('unix:/' + 'x' * 107, '107 bytes'),
            ('unix:/a\0b', 'absolute'),
        ):
            with self.subTest(text), self.assertRaisesRegex(OptionsError, text_part):
                metrics_conf.parse(text, False)


class ExporterCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = os.path.join(self.directory, 'metrics.sock')
        self.by_path = metrics_conf.MetricsOptions(metrics_conf.Address(self.path))

    def open_exporter(self, options=None, tick=FULL):
        exporter = Exporter(LOG, options or metrics_conf.MetricsOptions(ANY_PORT))
        self.addCleanup(exporter.close)
        exporter.update(tick, 0.25)
        return exporter

    def scrape(self, exporter):
        status, text = get(exporter.address)
        self.assertEqual(200, status)
        return text


class ContentTest(ExporterCase):
    def test_a_scrape_shows_what_the_tick_has_found(self):
        agent = self.open_exporter()
        agent.update(FULL, 0.5)
        exported = values(self.scrape(agent))
        for name, value in (
            ('node_capacity_cores{node="0"}', 4.5),
            ('node_demand_cores{node="1"}', 3.25),
            ('node_pressure_ratio{node="0",part="cpu"}', 0.72),
            ('node_pressure_ratio{node="0",part="bandwidth"}', 0.1),
            ('node_loss_cores{node="1",part="waiting"}', 0.5),
            ('node_dram_accesses_per_second{node="1",target="remote"}', 2e5),
            ('node_promised_bytes{node="0"}', 1 << 31),
            ('node_promisable_bytes{node="0"}', 1 << 34),
            ('node_guests{node="0"}', 1.5),
            ('source_info{source="guests"}', 1),
            ('sample_interval_seconds', 5),
            ('guests', 1),
            ('moving_guests', 1),
            ('agent_failing', 2),
            ('agent_problems', 1),
            ('agent_tick_seconds_count', 2),
            ('agent_tick_seconds_sum', 0.75),
            ('agent_last_tick_timestamp_seconds', 1700000000),
            ('moves_total{kind="move",result="made"}', 3),
            ('moves_total{kind="swap",result="made"}', 0),
            ('agent_libvirt_connected', 1),
            ('moved_bytes_total', 1 << 30),
        ):
            with self.subTest(name):
                self.assertEqual(value, exported['nova_numa_' + name])
        self.assertIn('process_resident_memory_bytes', exported)

    def test_guests_that_the_last_tick_could_not_read_are_not_counted(self):
        """The host was read, but not the operator's overrides."""
        agent = self.open_exporter()
        agent.update(FULL._replace(guests=(), events_source=''), 0.5)
        self.assertNotIn('nova_numa_guests', values(self.scrape(agent)))

    def test_a_figure_that_is_unknown_is_absent(self):
        exported = names(self.scrape(self.open_exporter(tick=EMPTY)))
        self.assertEqual(
            {
                'agent_info',
                'agent_tick_seconds_count',
                'agent_tick_seconds_sum',
                'agent_failing',
                'agent_paused',
                'agent_last_tick_timestamp_seconds',
                'moving_guests',
                'moves_total',
                'moved_bytes_total',
                'starts_taken_over_total',
            },
            {name[len('nova_numa_') :] for name in exported if name.startswith('nova_numa_')},
        )
        unknown = FULL._replace(
            sample=FULL.sample._replace(
                nodes=(sample_records.NodeSample(0, capacity_cores=4.0, cpi=1.5), NODES[1])
            )
        )
        exported = values(self.scrape(self.open_exporter(tick=unknown)))
        self.assertEqual(
            ['nova_numa_node_capacity_cores{node="0"}'],
            [
                name
                for name in exported
                if 'node="0"' in name
                and re.search('cores|ratio|per_second|instruction|node_memory', name)
            ],
        )

    def test_no_guest_is_named_unless_the_option_asks_for_it(self):
        self.assertNotRegex(self.scrape(self.open_exporter()), 'e4a1|instance-1|guest_')
        exported = values(
            self.scrape(self.open_exporter(metrics_conf.MetricsOptions(ANY_PORT, True)))
        )
        labels = '{name="instance-1",uuid="e4a1"}'
        self.assertEqual(
            (1.5, 0.25),
            (
                exported['nova_numa_guest_cores' + labels],
                exported['nova_numa_guest_waiting_cores' + labels],
            ),
        )
        self.assertEqual(
            8192, exported['nova_numa_guest_memory_bytes{name="instance-1",node="1",uuid="e4a1"}']
        )

    def test_a_scrape_may_ask_for_openmetrics_or_for_one_metric(self):
        agent = self.open_exporter()
        status, text = get(agent.address, Accept='application/openmetrics-text; version=1.0.0')
        self.assertEqual((200, '# EOF\n'), (status, text[-6:]))
        _, text = get(agent.address, '/metrics?name[]=nova_numa_guests')
        self.assertEqual({'nova_numa_guests': 1}, values(text))


class AgentTest(AgentCase):
    def test_the_agent_serves_what_it_measures_of_a_host(self):
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        with contextlib.closing(Exporter(LOG, metrics_conf.MetricsOptions(ANY_PORT))) as exporter:
            for at_s in (0, 5):
                self.set_busy(at_s, 0)
                exporter.update(self.tick(agent, at_s), 0.01)
            exported = values(get(exporter.address)[1])
        self.assertEqual(
            (1.0, 0.0, 1.0, 512 << 20, 1.0),
            tuple(
                exported['nova_numa_' + name]
                for name in (
                    'node_demand_cores{node="0"}',
                    'node_lasting_demand_cores{node="1"}',
                    'node_guests{node="0"}',
                    'node_promised_bytes{node="0"}',
                    'guests',
                )
            ),
        )


class UnixTest(ExporterCase):
    def test_a_socket_has_its_mode_and_is_removed_when_closed(self):
        agent = self.open_exporter(self.by_path)
        self.assertEqual(0o660, stat.S_IMODE(os.stat(self.path).st_mode))
        self.assertIn('nova_numa_guests 1.0', self.scrape(agent))
        agent.close()
        self.assertEqual([], os.listdir(self.directory))

    def test_a_socket_that_a_killed_agent_left_is_replaced(self):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(self.path)
        self.assertIn('nova_numa_guests', self.scrape(self.open_exporter(self.by_path)))

    def test_a_file_or_socket_of_others_at_the_path_is_left(self):
        with open(self.path, 'w'):
            pass
        with self.assertLogs(LOG, 'WARNING') as logs:
            self.assertIsNone(self.open_exporter(self.by_path).address)
        self.assertIn('not a socket', logs.output[0])
        self.assertTrue(os.path.exists(self.path))
        os.unlink(self.path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path)
            other.listen()
            with self.assertLogs(LOG, 'WARNING') as logs:
                self.open_exporter(self.by_path).close()
            self.assertIn('another process', logs.output[0])
            self.assertTrue(os.path.exists(self.path))

    def test_a_file_that_took_the_path_meanwhile_is_kept(self):
        agent = self.open_exporter(self.by_path)
        os.unlink(self.path)
        with open(self.path, 'w'):
            pass
        agent.close()
        self.assertTrue(os.path.exists(self.path))

    def test_a_socket_is_opened_once_its_directory_is_there(self):
        path = os.path.join(self.directory, 'later', 'metrics.sock')
        with self.assertLogs(LOG, 'INFO') as logs:
            agent = self.open_exporter(metrics_conf.MetricsOptions(metrics_conf.Address(path)))
            agent.update(FULL, 0.1)
            self.assertIsNone(agent.address)
            os.mkdir(os.path.dirname(path))
            agent.update(FULL, 0.1)
        self.assertIn('nova_numa_guests', self.scrape(agent))
        self.assertEqual(
            ['failed', 'served at', 'succeeded again'],
            [re.search('failed|served at|succeeded again', text).group() for text in logs.output],
        )


class ClientTest(ExporterCase):
    """Clients that misbehave."""

    def connect(self, exporter):
        client = socket.create_connection((exporter.address.host, exporter.address.port), 20)
        self.addCleanup(client.close)
        return client

    def test_malformed_requests_do_not_stop_the_exporter(self):
        agent = self.open_exporter()
        for text in (
            b'\0\xff\r\n\r\n',
            b'GET\r\n\r\n',
            b'GET / HTTP/9.9\r\n\r\n',
            b'GET /' + b'x' * 70000 + b' HTTP/1.1\r\n\r\n',
            b'GET / HTTP/1.1\r\n' + b'a: b\r\n' * 200 + b'\r\n',
            b'GET / HTTP/1.1\r\n' + b'a' * 70000,
            b'GET /?name[]=%ff&&=%zz HTTP/1.0\r\nAccept: ;;q=x,,\r\n\r\n',
            b'',
        ):
            with self.subTest(text[:20]):
                client = self.connect(agent)
                client.sendall(text)
                client.shutdown(socket.SHUT_WR)
                try:
                    while client.recv(65536):
                        pass
                except ConnectionError:
                    pass  # it closed the connection without reading everything
        for method in ('POST', 'PUT', 'DELETE'):
            self.assertEqual(501, get(agent.address, method=method)[0])
        self.assertIn('nova_numa_guests', self.scrape(agent))

    def test_many_silent_clients_do_not_block_the_agent(self):
        agent = self.open_exporter()
        idle = [self.connect(agent) for _ in range(8)]
        turned_away = self.connect(agent)
        self.assertEqual(b'', turned_away.recv(1))
        agent.update(FULL, 0.1)  # the loop does not notice
        for client in idle:
            client.close()
        for _ in range(1000):
            try:
                self.assertIn('nova_numa_guests', self.scrape(agent))
                return
            except (ConnectionError, http.client.HTTPException):
                pass  # threads have to notice that their clients have gone
        raise AssertionError('no place became free')

    def test_a_collector_that_fails_is_logged_once_and_stops_nothing(self):
        agent = self.open_exporter(tick=FULL._replace(sample='nonsense'))  # type: ignore[arg-type]
        with self.assertLogs(LOG, 'ERROR') as logs:
            for _ in range(2):
                with self.assertRaises((ConnectionError, http.client.HTTPException)):
                    get(agent.address)
        self.assertEqual(1, len(logs.records))
        agent.update(FULL, 0.1)
        self.assertIn('nova_numa_guests', self.scrape(agent))


class ReloadTest(ExporterCase):
    def test_a_reload_turns_metrics_on_moves_them_and_turns_them_off(self):
        agent = self.open_exporter(metrics_conf.MetricsOptions())
        self.assertIsNone(agent.address)
        agent.reload(metrics_conf.MetricsOptions(ANY_PORT))
        agent.update(FULL, 0.1)
        first = agent.address
        agent.reload(metrics_conf.MetricsOptions(ANY_PORT, True))
        agent.update(FULL, 0.1)
        self.assertEqual(first, agent.address)
        self.assertIn('instance-1', self.scrape(agent))
        agent.reload(self.by_path)
        agent.update(FULL, 0.1)
        self.assertNotIn('instance-1', self.scrape(agent))
        with self.assertRaises(ConnectionError):
            get(first)
        agent.reload(metrics_conf.MetricsOptions())
        agent.update(FULL, 0.1)
        self.assertEqual([], os.listdir(self.directory))

    def test_a_port_that_is_taken_is_tried_again(self):
        reserved = socket.socket()  # keeps the port from being taken meanwhile
        self.addCleanup(reserved.close)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(('127.0.0.1', 0))
        address = ANY_PORT._replace(port=reserved.getsockname()[1])
        with socket.create_server(reserved.getsockname()):
            with self.assertLogs(LOG, 'WARNING') as logs:
                agent = self.open_exporter(metrics_conf.MetricsOptions(address))
                agent.update(FULL, 0.1)
        self.assertEqual(1, len(logs.records))
        self.assertIn('in use', logs.output[0])
        agent.update(FULL, 0.1)
        self.assertIn('nova_numa_guests', self.scrape(agent))

    def test_a_thread_that_cannot_be_started_leaves_nothing_behind(self):
        with mock.patch('threading.Thread.start', side_effect=RuntimeError('no more')):
            with self.assertLogs(LOG, 'WARNING'):
                agent = self.open_exporter(self.by_path)
        self.assertEqual([], os.listdir(self.directory))
        agent.update(FULL, 0.1)
        self.assertIn('nova_numa_guests', self.scrape(agent))

    def test_a_socket_that_cannot_be_removed_is_logged(self):
        agent = self.open_exporter(self.by_path)
        with mock.patch('os.unlink', side_effect=OSError(30, 'Read-only file system')):
            with self.assertLogs(LOG, 'WARNING'):
                agent.reload(metrics_conf.MetricsOptions())
        self.assertIsNone(agent.address)


class LinkLocalTest(ExporterCase):
    def link_local_host(self):
        """Return an address of this machine with its interface; skip the test if there is none."""
        for line in (files.read_optional('/', 'proc/net/if_inet6') or '').splitlines():
            number, *_, interface = line.split()
            host = '%s%%%s' % (ipaddress.ip_address(int(number, 16)), interface)
            if host.startswith('fe80'):
                family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
                # An address that is still tentative cannot be bound.
                with contextlib.suppress(OSError), socket.create_server(address, family=family):
                    return host
        self.skipTest('no interface has a link-local address')

    def test_metrics_are_served_at_a_link_local_address(self):
        host = self.link_local_host()
        exporter = self.open_exporter(
            metrics_conf.MetricsOptions(metrics_conf.Address('', host, 0))
        )
        self.assertEqual(host, exporter.address.host)
        with socket.create_connection((host, exporter.address.port), timeout=60) as client:
            client.sendall(b'GET /metrics HTTP/1.0\r\n\r\n')
            with client.makefile('rb') as answer:
                self.assertIn(b'nova_numa_agent_info{version=', answer.read())


class WithoutPrometheusClientTest(unittest.TestCase):
    def test_without_prometheus_client_it_is_said_once(self):
        script = (
            'import logging, sys\n'
            'sys.modules["prometheus_client"] = None\n'
            'from nova_numa_pmc.agent.metrics.exporter import Exporter\n'
            'from nova_numa_pmc.conf import metrics as metrics_conf\n'
            'made = Exporter(logging.getLogger(), metrics_conf.MetricsOptions('
            'metrics_conf.Address("", "127.0.0.1", 0)))\n'
            'made.update(None, 0.1); made.update(None, 0.1); made.close()\n'
        )
        done = subprocess.run(
            [sys.executable, '-c', script], cwd=TOP, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((0, 1), (done.returncode, done.stderr.count('\n')), done.stderr)
        self.assertIn(sys.executable + ' -m pip install nova-numa-pmc[metrics]', done.stderr)


class DashboardTest(ExporterCase):
    """The dashboard in etc/ shows what is served, and nothing else."""

    #: Served but not on the dashboard, because the interval is an option.
    ABSENT = {'nova_numa_sample_interval_seconds'}

    def test_the_dashboard_shows_only_metrics_that_are_served(self):
        served = {
            name
            for name in names(
                self.scrape(self.open_exporter(metrics_conf.MetricsOptions(ANY_PORT, True)))
            )
            if name.startswith(('nova_numa_', 'process_'))
        }
        shown = set()
        for panel in self.dashboard()['panels']:
            for target in panel.get('targets', ()):
                metrics = set(re.findall(r'\b(?:nova_numa|process)_\w+', target['expr']))
                self.assertTrue(metrics, target)
                shown |= metrics
        self.assertEqual(set(), shown - served)
        self.assertEqual(
            self.ABSENT, {name for name in served - shown if name.startswith('nova_numa_')}
        )

    def test_the_operators_guide_names_each_metric(self):
        metrics = set(re.findall('``([a-z_]+)``', GUIDE.read_text(encoding='utf-8')))
        for name in names(
            self.scrape(self.open_exporter(metrics_conf.MetricsOptions(ANY_PORT, True)))
        ):
            if name.startswith('nova_numa_'):
                self.assertIn(re.sub('^nova_numa_|_(?:sum|count)$', '', name), metrics)

    def test_labels_in_the_dashboards_expressions_and_legends_exist(self):
        labels = {'instance', 'job'} | set(
            re.findall(
                r'[{,](\w+)="',
                self.scrape(self.open_exporter(metrics_conf.MetricsOptions(ANY_PORT, True))),
            )
        )
        for panel in self.dashboard()['panels']:
            for target in panel.get('targets', ()):
                used = set(re.findall(r'{{(\w+)}}', target['legendFormat']))
                for group in re.findall(r'\b(?:by|on) \(([^)]*)\)', target['expr']):
                    used |= set(group.split(', '))
                self.assertEqual(set(), used - labels, target)

    def test_the_dashboard_shows_the_last_tick_of_an_agent_that_has_been_stopped(self):
        """Prometheus drops its series after a few minutes."""
        [panel] = (
            panel
            for panel in self.dashboard()['panels']
            if panel['title'] == 'Since the last tick'
        )
        [target] = panel['targets']
        self.assertRegex(
            target['expr'],
            r'^time\(\) - max_over_time\(nova_numa_agent_last_tick_timestamp_seconds'
            r'\{[^}]+\}\[\$__range\]\)$',
        )

    def test_panels_of_the_dashboard_do_not_overlap(self):
        taken = set()
        for panel in self.dashboard()['panels']:
            at = panel['gridPos']
            cells = {
                (x, y)
                for x in range(at['x'], at['x'] + at['w'])
                for y in range(at['y'], at['y'] + at['h'])
            }
            self.assertEqual(set(), taken & cells, panel['title'])
            self.assertLessEqual(at['x'] + at['w'], 24)
            taken |= cells
        ids = [panel['id'] for panel in self.dashboard()['panels']]
        self.assertEqual(sorted(set(ids)), sorted(ids))

    @staticmethod
    def dashboard():
        return json.loads(DASHBOARD.read_text(encoding='utf-8'))
