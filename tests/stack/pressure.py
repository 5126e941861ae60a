# SPDX-License-Identifier: Apache-2.0
"""Phases of the scenario: load from outside, an imbalance, and failing parts of the package."""

import contextlib

from tests.stack import lifecycle, logs, places
from tests.stack.service import wait
from tests.stack.session import DEMAND_S, MOVES_S, PROMISE_S, must

#: One of each node's two CPUs is kept busy, on a machine that also does other things.
PRESSED = 0.4
#: With both CPUs of a node busy, the increase of its demand over the longer horizon.
NODE_PRESSED = 0.1
BUSY_GUESTS = 3
MEASURED = '--interval 30'
#: Exit codes of the commands.
DONE, MOVES_WOULD_PAY, PARTLY = 0, 2, 3
#: What the hook logs about its evidence.
BASED_ON_PRESSURE = 'based on the pressure measured'
#: The phase in which one of the hosts must be unknown to the weigher.
STALE = 'agent stopped'
HOOK = '/opt/nova-numa-pmc/lib/python3*/site-packages/nova_numa_pmc/hook.py'


@contextlib.contextmanager
def load(host, cpus=(0, 2)):
    """Keep CPUs busy, by default one of each node."""
    try:
        host.run(
            f'for cpu in {" ".join(map(str, cpus))}; do '
            'systemd-run -q --unit load-$cpu taskset -c $cpu '
            'sh -c "while :; do :; done"; done'
        )
        yield
    finally:
        host.run('systemctl stop "load-*"')


def loaded_host_is_avoided(on, entry):
    """With a CPU of each node of cmp1 busy from outside, the next two guests go to cmp2.

    Both hosts have the same number of guests, so Nova's own weighers see no difference.
    """
    on.wait_until_quiet()
    with load(on.hosts['cmp1']):
        on.wait_until_demand('cmp1', lambda demands: min(demands) >= PRESSED, 'pressed')
        on.wait_until_heard()
        with on.weighing(entry):
            servers = on.boot('late-1', 'late-2')
    entry['places'] = on.where('late-1', 'late-2')
    hosts = [server.hypervisor_hostname for server in servers]
    if on.with_package:
        must(hosts == ['cmp2', 'cmp2'], f'they went to {hosts}')
        by_host = {
            name: [
                weighing['penalty'] for weighing in entry['weighed'] if weighing['host'] == name
            ]
            for name in on.hosts
        }
        must(
            all(by_host.values()) and min(by_host['cmp1']) > max(by_host['cmp2']),
            f'the weigher does not prefer cmp2: {by_host}',
        )


def loaded_node_is_avoided(on, entry):
    """With both CPUs of node 0 of cmp1 busy from outside, the next two guests there get node 1.

    Based on promises alone, each would get a node of its own, because ties alternate.
    """
    host, names, placed = on.hosts['cmp1'], ('beside-1', 'beside-2'), {}
    on.wait_until_quiet()
    with load(host, (0, 1)):
        # Over the longer horizon, a burst counts for less than it is.
        on.wait_until_demand(
            'cmp1', lambda demands: demands[0] - demands[1] >= NODE_PRESSED, 'pressed on node 0'
        )
        for name in names:
            on.boot(name, availability_zone='nova:cmp1')
            lifecycle.look_at(on, entry, name)
            placed.update(entry['places'])
            on.delete(name)
    entry['places'] = placed
    if on.with_package:
        counts = places.spread(entry['places'])
        must(counts == {'cmp1 node 1': 2}, counts)
        entry['said'] = [
            line['what']
            for line in on.journals()['cmp1']
            if any(f'guest {name}: start: ' in line['what'] for name in names)
        ]
        must(
            len(entry['said']) == len(names)
            and all(BASED_ON_PRESSURE in what for what in entry['said']),
            f'the hook said {entry["said"]}',
        )


def imbalance_is_evened_out(on, entry):
    """Of three busy guests forced to a node of two CPUs, one moves, as planned.

    Four guests would be too many: two on each node leave no CPU to the host's daemons, which are
    slow in emulation, and then the last move does not pay.
    """
    host, servers = on.hosts['cmp1'], []
    on.delete(*on.servers)  # no other guest must be moved instead
    # One by one, and paused: if more emulated CPUs are busy than there are real ones, starts and
    # moves take minutes.
    for number in range(1, BUSY_GUESTS + 1):
        (server,) = on.boot(f'busy-{number}', image='busy', availability_zone='nova:cmp1')
        on.cloud.compute.pause_server(server)
        servers.append(on.wait_for(server, 'PAUSED'))
    names = [server.name for server in servers]
    host.force({server.instance_name: 0 for server in servers})
    for server in servers:
        on.cloud.compute.unpause_server(server)
        on.wait_for(server, 'ACTIVE')
    on.line.tell('the busy guests are forced to node 0', 'cmp1')
    entry['forced'] = on.where(*names)
    must(places.spread(entry['forced']) == {'cmp1 node 0': BUSY_GUESTS}, 'they are not on node 0')
    code, plan = host.ask(f'plan {MEASURED}', MOVES_S)
    entry['plan'] = [move['text'] for move in plan['moves']]
    entry['demand'] = {node['id']: node['demand_cores'] for node in host.state()['nodes']}
    must(code == MOVES_WOULD_PAY, f'plan ended with {code}, wanted: {entry["demand"]}')
    code, applied = host.ask(f'apply {MEASURED} --yes', MOVES_S)
    entry['moved'] = [
        f'{on.names.get(part["name"], part["name"])}: {one["result"]}: {one["why"]}'
        for one in (applied['outcome'] or {'entries': []})['entries']
        for part in one['parts']
    ]
    # Partly, if the kernel's NUMA balancing, which is on, was holding pages at that time.
    must(code in (DONE, PARTLY), f'apply ended with {code}: {entry["moved"]}')
    entry['places'] = on.where(*names)
    counts = places.spread(entry['places'])
    must(counts == {'cmp1 node 0': 2, 'cmp1 node 1': 1}, f'afterwards {counts}')


def stale_host_is_neutral(on, entry):
    """With the agent stopped, a host's metrics end; it weighs as much as the others on average."""
    host = on.hosts['cmp1']
    bytes_before = len(host.nova_log())
    host.run('systemctl stop nova-numa-agent')
    try:
        _wait_for_word(on, host, 'No NUMA metrics are sent', bytes_before)
        with on.weighing(entry):
            on.boot('stale-1')
        entry['places'] = on.where('stale-1')
    finally:
        bytes_before = len(host.nova_log())
        host.run('systemctl start nova-numa-agent')
    by_host = {weighing['host']: weighing for weighing in entry['weighed']}
    must(set(by_host) == set(on.hosts), f'weighed: {sorted(by_host)}')
    must(by_host['cmp1']['why'].startswith('unknown: '), by_host['cmp1']['why'])
    must(not by_host['cmp2']['why'].startswith('unknown: '), by_host['cmp2']['why'])
    _wait_for_word(on, host, 'NUMA metrics are sent again', bytes_before)


def _wait_for_word(on, host, word, since):
    """Wait until nova-compute of a host has logged a message, which it saves a moment later."""
    wait(lambda: word in host.nova_log()[since:], DEMAND_S, f'{host.name}: {word}', pause_s=5)
    on.line.tell(word, f'{host.name} nova-compute')
    on.wait_until_heard()


def hook_fails(on, entry):
    """Without its module, the hook ends with an error; the guest boots and the agent places it."""
    host = on.hosts['cmp1']
    host.run(f'for file in {HOOK}; do mv $file $file.away; done')
    try:
        (server,) = on.boot('broken-1', availability_zone='nova:cmp1')
    finally:
        host.run(f'for file in {HOOK}.away; do mv $file ${{file%.away}}; done')
    provoked = f'guest {server.name}: hook start'
    on.expected.append(provoked)
    entry['said'] = [
        line['what']
        for line in on.journals()['cmp1']
        if provoked in line['what'] and line['severity'] <= logs.ERROR
    ]
    must(entry['said'], 'nothing of the broken hook is in the journal')
    wait(
        lambda: on.promises()['cmp1'].get(server.id, {}).get('origin') == 'placed',
        PROMISE_S,
        f'the agent has placed {server.name}',
        pause_s=2,
    )
    entry['promise'] = on.must_be_promised(server, 'cmp1')['cmp1']
    entry['places'] = on.where(server.name)


def logs_are_clean(on, entry):
    """No log has an error or traceback of the package, and the weigher knew every host's pressure.

    The host whose agent was stopped is an exception.
    """
    texts = {path.name: path.read_text(errors='replace') for path in on.layout.logs.glob('*.log')}
    texts.update({f'{name} nova-compute': host.nova_log() for name, host in on.hosts.items()})
    journals = on.journals()
    entry['lines'] = {name: len(text.splitlines()) for name, text in texts.items()}
    entry['lines'].update({f'{name} journal': len(entries) for name, entries in journals.items()})
    must(all(journals.values()), 'a host has no line of ours in its journal')
    entry['ours'] = logs.our_errors(texts, journals, on.expected)
    must(not entry['ours'], entry['ours'][:5])
    unknown = [
        weighing
        for phase in on.line.phases
        for weighing in phase.get('weighed', ())
        if weighing['why'].startswith('unknown: ') and phase['name'] != STALE
    ]
    must(not unknown, unknown)
