# SPDX-License-Identifier: Apache-2.0
"""Test placement on machines of other shapes: cgroup v1, four, unequal and full nodes.

``make lab`` runs cgroup v1, a guest larger than a node, and the failure of a hard wall; ``make
lab-full`` also runs the others.
"""

import json

import pytest
from machine.guests import STARTED_AT_HOME, guests_per_node, home, home_share

V1 = {'cgroup': 'v1'}
FOUR = {'nodes': 4, 'cpus_per_node': 1, 'memory_mib': (1024,) * 4}
# Sub-NUMA clusters: two nodes per socket, each with its own memory controllers.
CLUSTERS = {
    'nodes': 4,
    'cpus_per_node': 2,
    'memory_mib': (1024,) * 4,
    'sockets': 2,
    'distances': ((10, 11, 20, 21), (11, 10, 21, 20), (20, 21, 10, 11), (21, 20, 11, 10)),
}
GPU = {'nodes': 4, 'cpus_per_node': 1, 'memory_only': 1, 'memory_mib': (1024, 1024, 1024, 3072)}
UNEQUAL = {'memory_mib': (2048, 1024)}
# The deck's host: node 1 has no memory below 4 GiB, and KVM allocates a shadow root there.
SHADOW = {'cgroup': 'v1', 'memory_mib': (5120, 1024), 'append': 'kvm_amd.npt=0'}
ON_NODE_1 = "placement='static' cpuset='2-3'"


def test_guests_are_spread_evenly_on_cgroup_v1(lab_of):
    """On cgroup v1, each node gets two guests, and a vCPU can still be plugged."""
    lab = lab_of(**V1)
    lab.install_hook()
    lab.skew(node=0, mib=300)
    lab.guests.start(
        [
            {
                'name': f'g{i}',
                'memory_mib': 64,
                'cmdline': 'duty=20 touch=50',
                'vcpus': 2,
                'vcpu': "placement='static' current='1'",
            }
            for i in range(4)
        ]
    )
    guests = lab.guests_after_hooks()
    assert guests_per_node(guests, 2) == [2, 2]
    for guest in guests.values():
        assert guest['cpus'] == [['0-1'], ['2-3']][home(guest)] and guest['mems'] == ['0-1']
        assert home_share(guest) >= STARTED_AT_HOME
    lab.run('virsh setvcpus g0 2 --live', timeout=100)
    assert '2' in lab.run('virsh vcpucount g0 --live --current').stdout.split()
    assert lab.running() == ['g0', 'g1', 'g2', 'g3']


@pytest.mark.full
@pytest.mark.parametrize('each', [2, 3])
def test_guests_are_spread_evenly_over_four_nodes(lab_of, each):
    """Each of four nodes gets the same number of guests."""
    lab = lab_of(**FOUR)
    lab.install_hook()
    lab.skew(node=2, mib=200)
    lab.guests.start(
        [{'name': f'g{i}', 'memory_mib': 16, 'cmdline': 'duty=5'} for i in range(4 * each)]
    )
    guests = lab.guests_after_hooks()
    assert guests_per_node(guests, 4) == [each] * 4
    for guest in guests.values():
        assert guest['cpus'] == [str(home(guest))] and guest['mems'] == ['0-3']
        assert home_share(guest) >= STARTED_AT_HOME


@pytest.mark.full
def test_a_guest_spans_two_nodes_of_one_socket(lab_of):
    """A guest with more vCPUs than a node spans two nodes of a socket, which the log says."""
    lab = lab_of(**CLUSTERS)
    print(
        lab.run(
            'grep . /sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list '
            '/sys/devices/system/cpu/cpu*/topology/physical_package_id',
            check=False,
        ).stdout
    )
    lab.install_hook()
    lab.guests.start([{'name': 'wide', 'memory_mib': 64, 'vcpus': 4, 'cmdline': 'duty=5'}])
    messages = lab.run('journalctl -o cat | grep "guest wide: start:"').stdout
    print(messages)
    assert 'spans the smallest and closest set of nodes' in messages
    (wide,) = lab.promised()
    assert wide['cpu_nodes'] in ([0, 1], [2, 3])
    lab.guests.start([{'name': f'g{i}', 'memory_mib': 16, 'cmdline': 'duty=5'} for i in range(4)])
    guests = lab.guests_after_hooks()
    assert guests.pop('wide')['cpus'] == ['0-3' if wide['cpu_nodes'] == [0, 1] else '4-7']
    for guest in guests.values():
        node = home(guest)
        assert guest['cpus'] == [f'{2 * node}-{2 * node + 1}'] and guest['mems'] == ['0-3']
        assert home_share(guest) >= STARTED_AT_HOME
    # The calmer socket has two CPUs for each of them.
    assert {home(guest) for guest in guests.values()} == {0, 1, 2, 3} - set(wide['cpu_nodes'])


def test_a_guest_larger_than_a_node_spans_two(lab_of):
    """A guest that no node can hold gets the CPUs of two, and its pages are on these."""
    lab = lab_of(**FOUR)
    lab.install_hook()
    lab.guests.start(
        [{'name': 'large', 'memory_mib': 1100, 'vcpus': 2, 'cmdline': 'duty=20 touch=3'}]
    )
    guest = lab.guests_after_hooks()['large']
    assert len(guest['cpus']) == 1
    first, last = (int(cpu) for cpu in guest['cpus'][0].replace(',', '-').split('-'))
    assert last != first and guest['mems'] == ['0-3']
    on_both = guest['bytes'].get(first, 0) + guest['bytes'].get(last, 0)
    assert on_both >= STARTED_AT_HOME * sum(guest['bytes'].values())


@pytest.mark.full
def test_no_guest_is_placed_on_the_memory_of_a_device(lab_of):
    """No guest and no promise is on memory of a node without CPUs, although it has the most room.

    The machine has no GPU, whose memory would be such a node.
    """
    lab = lab_of(**GPU)
    lab.guests.start([{'name': 'float', 'memory_mib': 300, 'cmdline': 'duty=5'}])  # no hook yet
    lab.install_hook()
    asks = 'nova-numa-rebalance explain --vcpus 1 --memory 2400M --json'  # more than all others
    conf = '/etc/nova-numa-pmc/nova-numa-pmc.conf'
    lab.run(f'touch {conf}; cp -p {conf} {conf}.before')
    lab.run(f'printf "[placement]\\nguest_memory_nodes = 3\\n" >>{conf}')
    assert 3 in json.loads(lab.run(asks).stdout)['decision']['mem_nodes']
    lab.run(f'mv {conf}.before {conf}')
    answer = json.loads(lab.run(asks, check=False).stdout)
    assert 3 not in answer['decision']['mem_nodes']
    assert [withheld['node'] for withheld in answer['memory_withheld']] == [3]
    promised = {node['id']: node['promised_bytes'] for node in answer['nodes']}
    assert promised.pop(3) == 0 and sum(promised.values()) >= 300 << 20
    lab.guests.start(
        [{'name': 'large', 'memory_mib': 1100, 'vcpus': 2, 'cmdline': 'duty=20 touch=3'}]
    )
    lab.guests.start([{'name': f'g{i}', 'memory_mib': 32, 'cmdline': 'duty=5'} for i in range(3)])
    guests = lab.guests_after_hooks()
    assert all(3 not in promise['mem_nodes'] + promise['cpu_nodes'] for promise in lab.promised())
    for guest in guests.values():
        assert guest['bytes'].get(3, 0) == 0
    assert 'not for guests' in lab.run('nova-numa-rebalance status').stdout
    assert (
        'memory-withheld'
        in lab.run('nova-numa-rebalance check --role compute', check=False).stdout
    )


@pytest.mark.full
def test_guests_are_placed_by_cores_until_a_node_has_promised_its_memory(lab_of):
    """Guests are placed in proportion to cores until the smaller node has promised its memory."""
    lab = lab_of(**UNEQUAL)
    lab.install_hook()
    lab.guests.start(
        [{'name': f'g{i}', 'memory_mib': 300, 'cmdline': 'duty=20 touch=8'} for i in range(6)]
    )
    guests = lab.guests_after_hooks()
    assert guests_per_node(guests, 2) == [4, 2]
    for guest in guests.values():
        assert guest['cpus'] == [['0-1'], ['2-3']][home(guest)]
        assert home_share(guest) >= STARTED_AT_HOME


@pytest.mark.full
@pytest.mark.parametrize('bind', ['false', 'true'])
def test_a_guest_on_a_full_node_spills_over_without_an_agent(lab_of, bind):
    """On a node that fills up, a guest spills over and lives, as no agent runs that binds it."""
    lab = lab_of(**UNEQUAL)
    lab.install_hook(bind=bind)
    lab.run('echo 3 >/proc/sys/vm/drop_caches')
    lab.guests.start([{'name': 'g', 'memory_mib': 200, 'vcpu': ON_NODE_1, 'paused': True}])
    lab.wait_for_hooks()
    kills = lab.oom_kills()
    free_mib = (
        int(
            lab.run('cat /sys/devices/system/node/node1/meminfo')
            .stdout.split('MemFree:')[1]
            .split()[0]
        )
        // 1024
    )
    lab.skew(node=1, mib=free_mib - 100)
    lab.run(
        'virsh resume g; for i in $(seq 120); do grep -q B /run/guests/g.log && break; '
        'virsh -q list --name | grep -q . || break; sleep 1; done',
        timeout=200,
    )
    guests = lab.guests_after_hooks()
    assert lab.oom_kills() == kills and lab.running() == ['g']
    assert guests['g']['bytes'][0] > 20 << 20 and guests['g']['bytes'][1] > 20 << 20
    passes = guests['g']['passes']
    lab.guests.count_accesses(4)
    assert lab.guests.report()['g']['passes'] > passes


@pytest.mark.full
def test_a_guest_starts_on_a_node_where_a_hard_wall_fails(lab_of):
    """A hard wall set before the start fails as on the deck's host; our start succeeds."""
    lab = lab_of(**SHADOW)
    lab.install_hook(enabled='false')
    spec = {'name': 'g', 'memory_mib': 64, 'cmdline': 'duty=20 touch=50', 'vcpu': ON_NODE_1}
    wall = (
        'cd /sys/fs/cgroup/cpuset && mkdir -p machine.slice && cd machine.slice && '
        'cat ../cpuset.cpus >cpuset.cpus && echo {mems} >cpuset.mems && '
        'echo {wall} >cpuset.mem_hardwall'
    )
    lab.run(wall.format(mems='1', wall='1'))
    failed = lab.guests.start([spec], check=False)['g']
    print(failed)
    assert failed['code'] and 'Cannot allocate memory' in failed['message']
    lab.run(wall.format(mems='0-1', wall='0'))
    lab.install_hook()
    lab.guests.start([spec])
    guest = lab.guests_after_hooks()['g']
    assert guest['cpus'] == ['2-3'] and home(guest) == 1 and home_share(guest) >= STARTED_AT_HOME
