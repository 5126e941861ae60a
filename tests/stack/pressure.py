# SPDX-License-Identifier: Apache-2.0
"""Phases of the scenario with load outside of guests, an imbalance, or a failing component."""

import contextlib

from tests.stack import lifecycle, logs, places
from tests.stack.service import wait
from tests.stack.session import DEMAND_S, MOVES_S, PROMISE_S, require

#: One of each node's two CPUs is kept busy. What is not a guest's counts by its mean over minutes,
#: which is half of that load after ten minutes.
LOADED_DEMAND_MIN = 0.25
#: With both CPUs of a node busy, the increase of its demand over the longer horizon.
NODE_DEMAND_INCREASE_MIN = 0.1
BUSY_GUESTS = 3
INTERVAL_ARGS = '--interval 30'
#: Exit codes of the commands.
DONE, MOVES_WOULD_PAY, PARTLY = 0, 2, 3
#: What the hook logs about its evidence.
BASED_ON_PRESSURE = 'based on the pressure measured'
#: The phase in which one of the hosts must be unknown to the weigher.
STALE_PHASE = 'agent stopped'
HOOK_MODULE = '/opt/nova-numa-pmc/lib/python3*/site-packages/nova_numa_pmc/hook/__init__.py'


@contextlib.contextmanager
def load(host, cpus=(0, 2)):
    """Keep CPUs of a host busy, by default one of each node."""
    try:
        host.run(
            f'for cpu in {" ".join(map(str, cpus))}; do '
            'systemd-run -q --unit load-$cpu taskset -c $cpu '
            'sh -c "while :; do :; done"; done'
        )
        yield
    finally:
        host.run('systemctl stop "load-*"')


def check_loaded_host(session, entry):
    """Check that two guests go to cmp2 while a CPU of each node of cmp1 is busy.

    Both hosts have the same number of guests, so Nova's own weighers see no difference.
    """
    session.wait_until_quiet()
    with load(session.hosts['cmp1']):
        session.wait_until_demand(
            'cmp1', lambda demands: min(demands) >= LOADED_DEMAND_MIN, 'pressed'
        )
        session.wait_until_nova_has_metrics()
        with session.record_weighings(entry):
            servers = session.boot('late-1', 'late-2')
    entry['places'] = session.places_of('late-1', 'late-2')
    hosts = [server.hypervisor_hostname for server in servers]
    if session.with_package:
        require(hosts == ['cmp2', 'cmp2'], f'they went to {hosts}')
        by_host = {
            name: [
                weighing['penalty'] for weighing in entry['weighed'] if weighing['host'] == name
            ]
            for name in session.hosts
        }
        require(
            all(by_host.values()) and min(by_host['cmp1']) > max(by_host['cmp2']),
            f'the weigher does not prefer cmp2: {by_host}',
        )


def check_loaded_node(session, entry):
    """Check that two guests on cmp1 both get node 1 while both CPUs of node 0 are busy.

    Based on promises alone, each would get a node of its own, because ties alternate.
    """
    host, names, placed = session.hosts['cmp1'], ('beside-1', 'beside-2'), {}
    session.wait_until_quiet()
    with load(host, (0, 1)):
        # Over the longer horizon, a burst counts for less than it is.
        session.wait_until_demand(
            'cmp1',
            lambda demands: demands[0] - demands[1] >= NODE_DEMAND_INCREASE_MIN,
            'pressed on node 0',
        )
        for name in names:
            session.boot(name, availability_zone='nova:cmp1')
            lifecycle.check_places(session, entry, name)
            placed.update(entry['places'])
            session.delete(name)
    entry['places'] = placed
    if session.with_package:
        counts = places.spread(entry['places'])
        require(counts == {'cmp1 node 1': 2}, counts)
        entry['logged'] = [
            line['message']
            for line in session.journals()['cmp1']
            if any(f'guest {name}: start: ' in line['message'] for name in names)
        ]
        require(
            len(entry['logged']) == len(names)
            and all(BASED_ON_PRESSURE in what for what in entry['logged']),
            f'the hook logged {entry["logged"]}',
        )


def check_imbalance(session, entry):
    """Check that one of three busy guests on a node of two CPUs is moved, as planned.

    Four guests would be too many: two on each node leave no CPU to the host's daemons, which are
    slow in emulation, and then the last move does not pay.
    """
    host, servers = session.hosts['cmp1'], []
    session.delete(*session.servers)  # no other guest must be moved instead
    # One by one, and paused: if more emulated CPUs are busy than there are real ones, starts and
    # moves take minutes.
    for number in range(1, BUSY_GUESTS + 1):
        (server,) = session.boot(f'busy-{number}', image='busy', availability_zone='nova:cmp1')
        session.cloud.compute.pause_server(server)
        servers.append(session.wait_for(server, 'PAUSED'))
    names = [server.name for server in servers]
    # Else the agent, which widens guests that wait, would be quicker than the operator.
    host.run('nova-numa-rebalance pause --for 20m')
    host.force({server.instance_name: 0 for server in servers})
    for server in servers:
        session.cloud.compute.unpause_server(server)
        session.wait_for(server, 'ACTIVE')
    session.line.add_event('the busy guests are forced to node 0', 'cmp1')
    entry['forced'] = session.places_of(*names)
    require(
        places.spread(entry['forced']) == {'cmp1 node 0': BUSY_GUESTS}, 'they are not on node 0'
    )
    code, plan = host.run_json(f'plan {INTERVAL_ARGS}', MOVES_S)
    entry['plan'] = [move['text'] for move in plan['moves']]
    entry['demand'] = {
        node['id']: node['demand_cores'] for node in host.publication()['view']['nodes']
    }
    require(code == MOVES_WOULD_PAY, f'plan ended with {code}, wanted: {entry["demand"]}')
    code, applied = host.run_json(f'apply {INTERVAL_ARGS} --yes', MOVES_S)
    entry['moved'] = [
        f'{session.names.get(one["name"], one["name"])}: {one["result"]}: {one["why"]}'
        for one in (applied['outcome'] or {'entries': []})['entries']
    ]
    # Partly, if the kernel's NUMA balancing, which is on, was holding pages at that time.
    require(code in (DONE, PARTLY), f'apply ended with {code}: {entry["moved"]}')
    entry['places'] = session.places_of(*names)
    host.run('nova-numa-rebalance pause --off')
    counts = places.spread(entry['places'])
    require(counts == {'cmp1 node 0': 2, 'cmp1 node 1': 1}, f'afterwards {counts}')


def check_stale_host(session, entry):
    """Check that the weigher uses a host's last figures while its agent is stopped."""
    host = session.hosts['cmp1']
    bytes_before = len(host.nova_log())
    host.run('systemctl stop nova-numa-agent')
    try:
        _wait_for_message(session, host, 'NUMA metrics are not renewed', bytes_before)
        with session.record_weighings(entry):
            session.boot('stale-1')
        entry['places'] = session.places_of('stale-1')
    finally:
        bytes_before = len(host.nova_log())
        host.run('systemctl start nova-numa-agent')
    by_host = {weighing['host']: weighing for weighing in entry['weighed']}
    require(set(by_host) == set(session.hosts), f'weighed: {sorted(by_host)}')
    for name, weighing in by_host.items():
        require(not weighing['why'].startswith('unknown: '), f'{name}: {weighing["why"]}')
    _wait_for_message(session, host, 'NUMA metrics are renewed again', bytes_before)


def _wait_for_message(session, host, message, since):
    """Wait until nova-compute of a host has logged a message, which it saves a moment later."""
    wait(
        lambda: message in host.nova_log()[since:], DEMAND_S, f'{host.name}: {message}', pause_s=5
    )
    session.line.add_event(message, f'{host.name} nova-compute')
    session.wait_until_nova_has_metrics()


def check_failing_hook(session, entry):
    """Check that a guest boots although the hook fails, and that the agent then places it."""
    host = session.hosts['cmp1']
    host.run(f'for file in {HOOK_MODULE}; do mv $file $file.away; done')
    try:
        (server,) = session.boot('broken-1', availability_zone='nova:cmp1')
    finally:
        host.run(f'for file in {HOOK_MODULE}.away; do mv $file ${{file%.away}}; done')
    provoked = f'guest {server.name}: hook start'
    session.expected.append(provoked)
    entry['logged'] = [
        line['message']
        for line in session.journals()['cmp1']
        if provoked in line['message'] and line['severity'] <= logs.ERROR
    ]
    require(entry['logged'], 'nothing of the broken hook is in the journal')
    wait(
        lambda: session.promises()['cmp1'].get(server.id, {}).get('origin') == 'placed',
        PROMISE_S,
        f'the agent has placed {server.name}',
        pause_s=2,
    )
    entry['promise'] = session.require_promise(server, 'cmp1')['cmp1']
    entry['places'] = session.places_of(server.name)


def check_logs(session, entry):
    """Check that no log has an error of the package, and that the weigher knew every pressure.

    The host whose agent was stopped is an exception.
    """
    texts = {
        path.name: path.read_text(errors='replace') for path in session.layout.logs.glob('*.log')
    }
    texts.update({f'{name} nova-compute': host.nova_log() for name, host in session.hosts.items()})
    journals = session.journals()
    entry['lines'] = {name: len(text.splitlines()) for name, text in texts.items()}
    entry['lines'].update({f'{name} journal': len(entries) for name, entries in journals.items()})
    require(all(journals.values()), 'a host has no line of ours in its journal')
    entry['ours'] = logs.our_errors(texts, journals, session.expected)
    require(not entry['ours'], entry['ours'][:5])
    unknown = [
        weighing
        for phase in session.line.phases
        for weighing in phase.get('weighed', ())
        if weighing['why'].startswith('unknown: ') and phase['name'] != STALE_PHASE
    ]
    require(not unknown, unknown)
