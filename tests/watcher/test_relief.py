# SPDX-License-Identifier: Apache-2.0
"""From an audit to migrations, in Watcher's API, decision engine and applier.

Nova and Placement are Watcher's emulators, Prometheus answers its client with what agents publish.
"""

import json
import time
import urllib.parse

import fixtures
from observabilityclient import prometheus_client
from watcher import objects
from watcher.decision_engine.audit import continuous
from watcher.decision_engine.datasources import aetos
from watcher.tests.functional import base, topology
from watcher.tests.local_fixtures.nova_api_emulator import NovaAPIEmulator
from wsgi_intercept import interceptor

from nova_numa_pmc.core import fleet
from tests.fixtures import fleets

PRESSED, IDLE = 'compute-1', 'compute-2'


class ReliefCase(base.WatcherFunctionalTestCase):
    """A saturated host and an idle one, the metrics of their agents, and an audit."""

    COMPUTE_TOPOLOGY = topology.ComputeTopology()

    def setUp(self):
        super().setUp()
        self.hosts = {
            PRESSED: fleets.equal_guests(0, 7, 5.0, time.time()),
            IDLE: fleets.equal_guests(100, 2, 5.0, time.time()),
        }
        self.load_hosts()
        self.flags(host='prometheus', port=9090, group='prometheus_client')
        self.flags(datasources=['prometheus'], group='watcher_datasources')
        self.prometheus = interceptor.RequestsInterceptor(
            lambda: self.serve, url='http://prometheus:9090/'
        )
        self.prometheus.install_intercept()
        self.addCleanup(self.prometheus.uninstall_intercept)

    def load_hosts(self, **changes):
        """Make Nova know the hosts and guests, the latter changed by uuid."""
        self.load_topology(
            topology.ComputeTopology(
                [
                    topology.ComputeNode(name, vcpus=1000, memory=1 << 20, disk=9999)
                    for name in self.hosts
                ],
                [
                    topology.Instance(
                        **{
                            'uuid': guest.uuid,
                            'name': guest.name,
                            'host': name,
                            'project_id': topology.DEFAULT_PROJECT_ID,
                            **changes.get(guest.uuid, {}),
                        }
                    )
                    for name, host in self.hosts.items()
                    for guest in host.guests
                ],
            )
        )

    def serve(self, environ, start_response):
        """Answer Watcher's client of Prometheus."""
        query = urllib.parse.parse_qs(environ['QUERY_STRING']).get('query')
        answer = {'status': 'success', 'data': {'activeTargets': []}}
        if query:
            answer = fleets.Server(self.hosts).answer(query[0])
        start_response('200 OK', [('Content-Type', 'application/json')])
        return [json.dumps(answer).encode()]

    def post_audit(self, audit_type='ONESHOT', **parameters):
        """Ask for an audit; return the answer."""
        interval = {'interval': '300'} if audit_type == 'CONTINUOUS' else {}
        return self.admin_api.post(
            '/audits',
            {
                'audit_type': audit_type,
                'goal': 'numa_pressure',
                'strategy': 'numa_pressure_relief',
                'parameters': parameters,
                **interval,
            },
        )

    def last_plan(self, audit_uuid):
        """Return the newest action plan of an audit, with its actions."""
        plans = self.admin_api.get(f'/action_plans/detail?audit_uuid={audit_uuid}&sort_key=id')
        plan = plans.json()['action_plans'][-1]
        actions = self.admin_api.get('/actions/detail?action_plan_uuid=' + plan['uuid'])
        return plan, actions.json()['actions']

    def audit(self, **parameters):
        """Run an audit; return its action plan and actions."""
        response = self.post_audit(**parameters)
        self.assertEqual(201, response.status_code, response.text)
        self._wait_for_audit_state(response.json()['uuid'], 'SUCCEEDED')
        return self.last_plan(response.json()['uuid'])

    def start(self, plan):
        """Start an action plan."""
        pending = [{'op': 'replace', 'path': '/state', 'value': 'PENDING'}]
        answer = self.admin_api.patch('/action_plans/' + plan['uuid'], pending)
        self.assertEqual(200, answer.status_code)

    def run_plan(self, plan, state):
        """Execute an action plan until it is in a state; return {uuid of guest: action}."""
        self.start(plan)
        deadline_s = time.monotonic() + 60
        while True:
            now = self.admin_api.get('/action_plans/' + plan['uuid']).json()
            if now['state'] in ('SUCCEEDED', 'FAILED') or time.monotonic() > deadline_s:
                break
            time.sleep(0.1)
        self.assertEqual(state, now['state'])
        actions = self.admin_api.get('/actions/detail?action_plan_uuid=' + plan['uuid'])
        return {one['input_parameters']['resource_id']: one for one in actions.json()['actions']}

    def host_of(self, uuid):
        """Return where Nova has a guest."""
        return self.env.nova_fixture.nova_emulator.servers[uuid]['OS-EXT-SRV-ATTR:host']

    def indicators(self, plan):
        """Return the efficacy indicators of an action plan by name."""
        return {one['name']: one['value'] for one in plan['efficacy_indicators']}

    @property
    def log(self):
        return self.env.stdlog.logger.output


def guests_of(actions):
    """Return the uuids of the guests that move."""
    return [one['input_parameters']['resource_id'] for one in actions]


class PlanTest(ReliefCase):
    def test_an_audit_recommends_the_plan_and_the_applier_makes_its_moves(self):
        expected = fleet.plan(self.hosts, fleet.Budgets(10, 256 << 30), time.time())
        plan, actions = self.audit()
        self.assertEqual([move.uuid for move in expected.moves], guests_of(actions))
        for action in actions:
            self.assertEqual('migrate', action['action_type'])
            wanted = action['input_parameters']
            self.assertEqual(
                ('live', PRESSED, IDLE),
                tuple(
                    wanted[key] for key in ('migration_type', 'source_node', 'destination_node')
                ),
            )
        gained = sum(move.gain_cores for move in expected.moves)
        figures = self.indicators(plan)
        self.assertAlmostEqual(gained, float(figures.pop('gained_cores')), 2)
        self.assertEqual(
            {
                'migrations_count': len(actions),
                'moved_gib': 8 * len(actions),
                'hosts_count': 2,
                'left_alone_count': len(expected.left_alone),
            },
            figures,
        )
        (judged,) = plan['global_efficacy']
        self.assertAlmostEqual(gained, judged['value'], 2)
        done = self.run_plan(plan, 'SUCCEEDED')
        self.assertEqual({'SUCCEEDED'}, {one['state'] for one in done.values()})
        self.assertEqual({IDLE}, {self.host_of(uuid) for uuid in done})

    def test_budgets_are_parameters_that_the_schema_checks(self):
        self.assertEqual(1, len(self.audit(moves=1)[1]))
        self.assertEqual(2, len(self.audit(memory_gib=17)[1]))
        for wrong in ({'moves': 0}, {'memory_gib': '1'}, {'match': 1}, {'bytes': 1}):
            self.assertEqual(400, self.post_audit(**wrong).status_code)

    def test_guests_that_are_locked_stopped_or_elsewhere_for_nova_stay(self):
        guests = [guest.uuid for guest in self.hosts[PRESSED].guests]
        changes = dict.fromkeys(guests, {'locked': True})
        changes[guests[1]] = {'state': 'stopped'}
        changes[guests[2]] = {'host': IDLE}
        del changes[guests[3]]
        self.load_hosts(**changes)
        self.assertEqual([guests[3]], guests_of(self.audit()[1]))

    def test_aetos_is_asked_like_prometheus(self):
        self.flags(datasources=['gnocchi', 'aetos'], group='watcher_datasources')
        client = prometheus_client.PrometheusAPIClient('prometheus:9090')
        self.useFixture(
            fixtures.MockPatchObject(
                aetos.AetosHelper, '_setup_prometheus_client', return_value=client
            )
        )
        self.assertTrue(self.audit()[1])


class FailureTest(ReliefCase):
    def assert_fails(self, *texts):
        """Check that an audit fails, and that the log says why."""
        uuid = self.post_audit().json()['uuid']
        self._wait_for_audit_state(uuid, 'FAILED')
        for text in texts:
            self.assertIn(text, self.log)

    def test_without_prometheus_an_audit_fails_and_the_log_says_why(self):
        self.flags(host='127.0.0.1', port=1, group='prometheus_client')
        self.assert_fails('no answer of the data source: ', 'Connection refused')

    def test_without_a_data_source_that_has_queries_the_log_says_what_to_set(self):
        self.flags(datasources=['gnocchi'], group='watcher_datasources')
        self.assert_fails('[watcher_strategies.numa_pressure_relief] to one of: aetos, prometheus')

    def test_hosts_that_nova_calls_otherwise_are_named(self):
        self.load_topology(topology.ComputeTopology().add_computes(2, 'cmp'))
        self.assert_fails('those that have some: compute-1, compute-2')

    def test_a_continuous_audit_outlasts_an_outage_relieves_and_then_does_nothing(self):
        uuid = self.post_audit('CONTINUOUS').json()['uuid']

        def next_round():
            audit = objects.Audit.get_by_uuid(self.context, uuid, eager=True)
            continuous.ContinuousAuditHandler().execute(audit, self.context)
            self.assertEqual('ONGOING', self.admin_api.get('/audits/' + uuid).json()['state'])
            plan, actions = self.last_plan(uuid)
            return plan, guests_of(actions), self.indicators(plan)['hosts_count']

        self.flags(host='127.0.0.1', group='prometheus_client')
        plan, moving, count = next_round()
        self.assertEqual(('SUCCEEDED', [], 0), (plan['state'], moving, count))
        self.assertIn('this round plans nothing: ', self.log)

        self.flags(host='prometheus', group='prometheus_client')
        plan, moving, count = next_round()
        self.assertEqual(('RECOMMENDED', 2), (plan['state'], count))
        self.run_plan(plan, 'SUCCEEDED')

        source, target = self.hosts[PRESSED].guests, self.hosts[IDLE].guests
        stayed = [one for one in source if one.uuid not in moving]
        came = [one._replace(why_fixed=fleet.ARRIVED) for one in source if one.uuid in moving]
        there = [*target, *came]
        self.hosts = {
            PRESSED: fleets.host([stayed[::2], stayed[1::2]], taken_s=time.time()),
            IDLE: fleets.host([there[::2], there[1::2]], taken_s=time.time()),
        }
        for _ in range(3):
            self.assertEqual(([], 2), next_round()[1:])

    def test_a_host_with_stale_figures_neither_gives_nor_gets_guests(self):
        for name in self.hosts:
            hosts = dict(self.hosts)
            stale = hosts[name]._replace(taken_s=time.time() - 2 * fleet.STALE_S)
            self.useFixture(fixtures.MockPatchObject(self, 'hosts', {**hosts, name: stale}))
            plan, actions = self.audit()
            self.assertEqual([], actions)
            self.assertEqual(2 if name == IDLE else 1, self.indicators(plan)['left_alone_count'])
            self.assertIn(f'host {name} is left alone: its figures are too old', self.log)
            self.hosts = hosts

    def test_a_host_that_nova_has_disabled_gets_no_guests(self):
        emulator = self.env.nova_fixture.nova_emulator
        emulator._find_service_by_hostname(IDLE)['status'] = 'disabled'
        emulator._find_hypervisor_by_hostname(IDLE)['status'] = 'disabled'
        plan, actions = self.audit()
        self.assertEqual(([], 1), (actions, self.indicators(plan)['hosts_count']))

    def test_a_host_that_leaves_after_the_plan_gets_no_guests(self):
        plan, actions = self.audit()
        del self.hosts[IDLE]
        self.load_hosts()
        done = self.run_plan(plan, 'FAILED')
        for uuid in guests_of(actions):
            self.assertEqual(('FAILED', PRESSED), (done[uuid]['state'], self.host_of(uuid)))
            action = objects.Action.get_by_uuid(self.context, done[uuid]['uuid'])
            self.assertIn(f'Destination node {IDLE} not found', action.status_message)

    def test_a_guest_that_was_moved_after_the_plan_is_skipped(self):
        plan, actions = self.audit(moves=2)
        moved, other = guests_of(actions)
        self.env.nova_fixture.nova_emulator._move_server(moved, IDLE)
        done = self.run_plan(plan, 'SUCCEEDED')
        self.assertEqual(
            ['SKIPPED', 'SUCCEEDED'], [done[uuid]['state'] for uuid in (moved, other)]
        )
        self.assertEqual([IDLE, IDLE], [self.host_of(uuid) for uuid in (moved, other)])

    def test_a_migration_that_fails_leaves_its_guest_which_then_stays_for_a_day(self):
        plan, actions = self.audit(moves=2)
        failing, other = guests_of(actions)
        move = NovaAPIEmulator._move_server

        def refuse(emulator, uuid, host):
            if uuid != failing:
                move(emulator, uuid, host)

        self.useFixture(fixtures.MockPatchObject(NovaAPIEmulator, '_move_server', refuse))
        done = self.run_plan(plan, 'FAILED')
        self.assertEqual(
            ['FAILED', 'SUCCEEDED'], [done[uuid]['state'] for uuid in (failing, other)]
        )
        self.assertEqual([PRESSED, IDLE], [self.host_of(uuid) for uuid in (failing, other)])
        again = guests_of(self.audit()[1])
        self.assertTrue(again)
        self.assertNotIn(failing, again)
