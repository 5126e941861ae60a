# SPDX-License-Identifier: Apache-2.0
"""Demand is what guests want of the CPUs that they may use, whatever holds them back."""

import json

import pytest

pytestmark = pytest.mark.full      # minutes: `make lab-full` runs them

INTERVAL_S = 10
#: Of 100 ms each vCPU gets 5: 0.05 cores.
QUOTA = 'vcpu_period=100000 vcpu_quota=5000'
BUSY = {'memory_mib': 16, 'cmdline': 'mode=cpu duty=100'}
NOVA_CONF = '[compute]\ncpu_shared_set = {}\ncpu_dedicated_set = {}\n'
DEDICATED = ("<cputune><vcpupin vcpu='0' cpuset='{cpu}'/><emulatorpin cpuset='{cpu}'/></cputune>")


def planned(lab):
    """Return (what was measured, what would be moved within four hours)."""
    top = json.loads(lab.run(
        f'nova-numa-rebalance top --once --json --interval {INTERVAL_S}', timeout=200).stdout)
    plan = json.loads(lab.run(
        f'nova-numa-rebalance plan --json --interval {INTERVAL_S} --horizon 4h', timeout=200,
        check=False).stdout)
    nodes = {node['id']: {name: node[name] for name in (
        'capacity_cores', 'demand_cores', 'pressure')} for node in top['nodes']}
    guests = {guest['name']: (guest['cores'], guest['waiting_cores']) for guest in top['guests']}
    print(nodes, guests, [move['text'] for move in plan['moves']], sep='\n')
    return nodes, guests, plan['moves']


def test_a_quota_is_neither_waiting_nor_pressure(lab):
    """Three guests of 0.05 cores on one node of two want 0.15, and none of them is moved."""
    lab.install_hook()
    names = ('a', 'b', 'c')
    lab.start_at([{**BUSY, 'name': name} for name in names], dict.fromkeys(names, 0))
    for name in names:
        lab.run(f'virsh -q schedinfo {name} --live --set {QUOTA}')
    nodes, guests, moves = planned(lab)
    for name in names:
        ran, waited = guests[name]
        assert ran < 0.12 and waited < 0.1, (name, guests[name])
    assert nodes[0]['pressure'] < 0.6, nodes
    assert moves == []
