# SPDX-License-Identifier: Apache-2.0
"""Test the agent in its hardened unit, with real systemd, libvirt, cgroups and counters."""

import json

import pytest
from machine.agent import INTERVAL_S, SHIPPED, UNIT

pytestmark = pytest.mark.full  # takes minutes: `make lab-full` runs them

CPUS = {0: '0-1', 1: '2-3'}
#: Sources that count with perf; see doc/source/reference/counters.rst.
COUNTED_SOURCES = 'guests by thread', 'cpus'
BUSY = {'memory_mib': 16, 'cmdline': 'duty=100 touch=50'}


def on_node(node, **more):
    """Describe a busy guest that may run on one node only, and is therefore placed there."""
    return {**BUSY, 'vcpu': f"placement='static' cpuset='{CPUS[node]}'", **more}


def test_the_agent_publishes_from_its_hardened_unit(agent):
    """The figures are fresh once the agent is ready, are counted, and show busy guests' node."""
    agent.start()
    host, age_s = agent.published()
    assert age_s < 10 * INTERVAL_S and len(host['view']['nodes']) == 2
    idle = agent.after()['view']['nodes'][0]['demand_cores']
    agent.lab.guests.start([on_node(0, name='a'), on_node(0, name='b')])
    agent.lab.wait_for_hooks()
    host = agent.after(3)
    print(idle, host)
    near, far = host['view']['nodes']
    assert near['guests'] == 2 and far['guests'] == 0
    assert near['promised_bytes'] == 32 << 20
    assert near['demand_cores'] > max(idle, far['demand_cores']) + 1
    # The same source as without the unit's confinement, so that takes nothing away.
    top = json.loads(
        agent.run(
            f'nova-numa-rebalance top --once --json --interval {INTERVAL_S}', timeout=200
        ).stdout
    )
    assert host['source'] == top['source'] and host['source'] in COUNTED_SOURCES, top['problems']
    assert f'2 guests; source: {host["source"]};' in agent.show('StatusText')
    # Debian's kernel: see perf-paranoid.conf.
    assert agent.run('cat /proc/sys/kernel/perf_event_paranoid').stdout.strip() == '3'
    assert agent.failures() == []


def test_the_agent_remembers_demand_across_a_restart(agent):
    """The agent remembers demand across a restart, and that of a guest that is paused."""
    agent.start()
    agent.lab.guests.start([on_node(0, name='a')])
    agent.lab.wait_for_hooks()
    agent.after(8)
    agent.run(f'systemctl restart {UNIT} && virsh suspend a', timeout=200)
    (guest,) = json.loads(agent.run('nova-numa-rebalance status --json').stdout)['guests']
    demand = guest['lasting_demand_cores']['day']
    assert 0.5 < demand < 2, demand
    near = agent.after()['view']['nodes'][0]
    print(demand, near)
    assert near['demand_cores'] > near['demand_now_cores'] + demand / 2
    assert agent.failures() == []
    assert not [line for line in agent.journal() if 'wanted' in line]


def test_a_load_outside_of_guests_counts_fully_in_two_minutes(agent):
    """A load that keeps a CPU busy all the time counts fully, however quiet it was before."""
    agent.start()
    before = agent.after(3)['view']['nodes'][1]['demand_cores']
    agent.run('systemd-run -q --unit load taskset -c 3 sh -c "while :; do :; done"')
    try:
        began = agent.after(1)['view']['nodes'][1]
        # As in until(), asking takes a CPU of the machine, so ask rarely.
        later = agent.after(2 + 120 // INTERVAL_S, every_s=20)['view']['nodes'][1]
    finally:
        agent.run('systemctl stop load')
    print(before, began, later)
    assert began['demand_cores'] < began['demand_now_cores']
    assert later['demand_cores'] > max(0.9, before + 0.5)


def test_the_agent_is_restarted_after_a_kill_with_its_promises(agent):
    """After a kill, a new process publishes fresh state, and the promises are unchanged."""
    agent.start()
    agent.lab.guests.start([on_node(1, name='a')])
    agent.lab.wait_for_hooks()
    promised, pid = agent.lab.promised(), agent.show('MainPID')
    agent.run(f'kill -9 {pid}')
    agent.until(
        lambda: (agent.show('MainPID'), agent.show('ActiveState')),
        lambda state: state[0] not in ('0', pid) and state[1] == 'active',
    )
    agent.after(1)
    assert agent.lab.promised() == promised and promised
    assert agent.lab.running() == ['a']


def test_the_agent_restores_a_reset_cpuset_at_its_next_tick(agent):
    """A cpuset that was reset is as promised one tick later, and one log line says so."""
    agent.start(rebalance='off')
    agent.lab.guests.start([{**BUSY, 'name': name} for name in 'ab'])
    agent.lab.wait_for_hooks()
    before = agent.lab.cpusets()
    held = {
        path: text
        for path, text in before.items()
        if path.endswith('/libvirt/vcpu0/cpuset.cpus') and text in CPUS.values()
    }
    assert sorted(held.values()) == sorted(CPUS.values()), before
    for path in held:
        agent.run(f"echo 0-3 >'{path}'")
    agent.run('systemctl daemon-reload && systemctl restart libvirtd', timeout=200)
    agent.after()
    after = agent.lab.cpusets()
    assert {path: after[path] for path in held} == held
    messages = [line for line in agent.journal() if ' again: CPUs ' in line]
    assert 2 <= len(messages) <= 6, messages
    assert agent.lab.running() == ['a', 'b']


def test_metrics_are_a_file_and_the_agent_has_no_network_socket(agent):
    """The agent's process has no network socket, and its metrics are served by another user."""
    agent.start()
    agent.after(1)
    metrics = agent.run('cat /run/nova-numa-pmc/metrics/nova-numa-pmc.prom').stdout
    assert 'nova_numa_node_demand_cores{node="1"}' in metrics, metrics
    assert 'nova_numa_guest_' not in metrics
    sockets = agent.run('ss --tcp --udp --all --processes --no-header').stdout
    assert 'nova-numa-agent' not in sockets, sockets
    agent.run(
        f'cp {SHIPPED}/nova-numa-metrics.service'
        ' /etc/systemd/system/ && systemctl daemon-reload && systemctl start nova-numa-metrics',
        timeout=100,
    )
    served = agent.until(
        lambda: (
            agent.run(
                'curl -sSf --max-time 20 http://127.0.0.1:19877/metrics.txt', check=False
            ).stdout
        ),
        lambda text: 'nova_numa_node_demand_cores{node="1"}' in text,
    )
    assert 'nova_numa_guest_' not in served
    assert agent.run('systemctl show -p DynamicUser --value nova-numa-metrics').stdout == 'yes\n'


def test_the_agent_stops_cleanly(agent):
    """A stop is quick and leaves no failure."""
    agent.start()
    agent.run(f'systemctl stop {UNIT}', timeout=100)
    assert (agent.show('Result'), agent.show('ActiveState')) == ('success', 'inactive')
    assert agent.run('test -d /run/nova-numa-pmc', check=False).returncode == 0
