# SPDX-License-Identifier: Apache-2.0
"""Test the measured demand of guests with quotas, dedicated CPUs and isolated CPUs."""

import json

import pytest

pytestmark = pytest.mark.full  # takes minutes: `make lab-full` runs them

INTERVAL_S = 10
#: Each vCPU gets 5 of 100 ms: 0.05 cores.
QUOTA = 'vcpu_period=100000 vcpu_quota=5000'
BUSY = {'memory_mib': 16, 'cmdline': 'mode=cpu duty=100'}
NOVA_CONF = '[compute]\ncpu_shared_set = {}\ncpu_dedicated_set = {}\n'
DEDICATED = "<cputune><vcpupin vcpu='0' cpuset='{cpu}'/><emulatorpin cpuset='{cpu}'/></cputune>"


def measure_and_plan(lab):
    """Return (what was measured, what would be moved within four hours)."""
    top = json.loads(
        lab.run(
            f'nova-numa-rebalance top --once --json --interval {INTERVAL_S}', timeout=200
        ).stdout
    )
    plan = json.loads(
        lab.run(
            f'nova-numa-rebalance plan --json --interval {INTERVAL_S} --payback 4h',
            timeout=200,
            check=False,
        ).stdout
    )
    nodes = {
        node['id']: {name: node[name] for name in ('capacity_cores', 'demand_cores', 'pressure')}
        for node in top['nodes']
    }
    guests = {guest['name']: (guest['cores'], guest['waiting_cores']) for guest in top['guests']}
    print(nodes, guests, [move['text'] for move in plan['moves']], sep='\n')
    return nodes, guests, plan['moves']


def test_a_quota_is_neither_waiting_nor_pressure(lab):
    """Three guests with a quota of 0.05 cores on one node want 0.15, and none of them is moved."""
    lab.install_hook()
    names = ('a', 'b', 'c')
    lab.start_at([{**BUSY, 'name': name} for name in names], dict.fromkeys(names, 0))
    for name in names:
        lab.run(f'virsh -q schedinfo {name} --live --set {QUOTA}')
    nodes, guests, moves = measure_and_plan(lab)
    for name in names:
        ran, waited = guests[name]
        assert ran < 0.12 and waited < 0.1, (name, guests[name])
    assert nodes[0]['pressure'] < 0.6, nodes
    assert moves == []


def published_pools(agent):
    """Return {node id: (cores, current demand)} as published, and the source of the CPUs."""
    host = agent.after(2)
    nodes = host['view']['nodes']
    print(host['pool_source'], nodes)
    return {node['id']: (node['cores'], node['demand_now_cores']) for node in nodes}, host[
        'pool_source'
    ]


def test_polling_on_dedicated_cpus_adds_no_demand_to_shared_ones(agent):
    """A guest that polls on the dedicated CPU of node 0 does not press on the shared CPU.

    This holds whether the pools come from Nova's file or only from the guests' XML.
    """
    lab = agent.lab
    metadata = (
        '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">'
        '<nova:flavor name="{}"/></nova:instance>'
    )
    lab.run('mkdir -p /etc/nova && cat >/etc/nova/nova.conf', stdin=NOVA_CONF.format('0,2', '1,3'))
    agent.start(rebalance='off')
    lab.guests.start(
        [
            {
                **BUSY,
                'name': 'poll',
                'cputune': DEDICATED.format(cpu=1),
                'metadata': metadata.format('dedicated'),
            },
            {
                'name': 'plain',
                'memory_mib': 16,
                'cmdline': 'mode=cpu duty=20',
                'vcpu': "placement='static' cpuset='0,2'",
                'metadata': metadata.format('plain'),
            },
        ]
    )
    lab.wait_for_hooks()
    promised = {one['name']: one['vcpus'] for one in lab.promised()}
    measured, source = published_pools(agent)
    lab.run('rm -r /etc/nova && systemctl restart nova-numa-agent', timeout=200)
    inferred, by_guests = published_pools(agent)
    status = lab.run('nova-numa-rebalance status').stdout
    print(promised, status)
    assert (source, by_guests) == ('nova.conf', 'guests')
    for nodes in (measured, inferred):
        assert [cores for cores, _ in nodes.values()] == [1.0, 1.0], nodes
        # A whole core polls next to it.
        assert nodes[0][1] < 0.9 and nodes[1][1] < 0.9, nodes
    assert promised == {'poll': 0, 'plain': 1}
    assert "floating pool: CPUs 0,2, from the guests' XML" in status
    assert lab.run(
        'cat /sys/fs/cgroup/machine.slice/*plain.scope/libvirt/vcpu0/cpuset.cpus'
    ).stdout.strip() in ('0', '2')


def test_demand_on_a_saturated_shared_cpu_exceeds_its_capacity(agent):
    """Two guests on node 0's shared CPU want twice its capacity while the dedicated one idles."""
    lab = agent.lab
    lab.run('mkdir -p /etc/nova && cat >/etc/nova/nova.conf', stdin=NOVA_CONF.format('0,2', '1,3'))
    agent.start()
    lab.guests.start(
        [{**BUSY, 'name': name, 'vcpu': "placement='static' cpuset='0'"} for name in ('a', 'b')]
    )
    lab.wait_for_hooks()
    pools, source = published_pools(agent)
    lab.run('rm -r /etc/nova')
    assert source == 'nova.conf'
    assert pools[0][0] == 1.0 and pools[0][1] > 1.6, pools


def test_an_isolated_cpu_is_in_no_pool(lab_of):
    """A guest that polls on an isolated CPU adds no demand, and that CPU adds no capacity."""
    lab = lab_of(append='isolcpus=3')
    lab.install_hook()
    lab.guests.start([{**BUSY, 'name': 'poll', 'cputune': DEDICATED.format(cpu=3)}])
    lab.wait_for_hooks()
    nodes, guests, moves = measure_and_plan(lab)
    assert (nodes[0]['capacity_cores'], nodes[1]['capacity_cores']) == (2.0, 1.0), nodes
    assert guests['poll'][0] > 0.6 and nodes[1]['demand_cores'] < 0.6, (guests, nodes)
    assert moves == [] and lab.promised()[0]['vcpus'] == 0
