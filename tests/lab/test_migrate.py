# SPDX-License-Identifier: Apache-2.0
"""Test moves of a running guest: its bytes, its throughput, and effects on other processes.

The places of bytes come from the kernel, throughput from perf. The figures are printed; run with
-s to see them. The tests take a quarter of an hour: `make lab-full` runs them.
"""

import json
import random
import shlex
import signal

import pytest
from machine.guests import home_share
from machine.image import LAB
from machine.vm import LAB_DIR

pytestmark = pytest.mark.full

MIB = 1 << 20
THP = '/sys/kernel/mm/transparent_hugepage/enabled'
MEMFD = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
MOVE = f'python3 {LAB_DIR}/labmove.py'


def guest_on_node_1(lab, memory_mib=192, **spec):
    """Start a floating guest with its memory on node 1."""
    lab.machine.push([LAB / 'inside/labmove.py'], LAB_DIR)
    lab.guests.start([{'name': 'w', 'memory_mib': memory_mib, 'cmdline': 'duty=60', **spec}])
    move_memory(lab, 1)


def move_memory(lab, node):
    """Move the guest's memory to a node with its cpuset, as neither hook nor agent would."""
    where = lab.run(
        'ls -d /sys/fs/cgroup/machine.slice/*w.scope '
        '/sys/fs/cgroup/cpuset/machine.slice/*w.scope 2>/dev/null',
        check=False,
    )
    scope = shlex.quote(where.stdout.strip())
    if 'cpuset/machine' in scope:  # v1: migratepages, because its children have sets of their own
        lab.run(f'migratepages $(cat /run/libvirt/qemu/w.pid) {1 - node} {node}', timeout=200)
    else:
        lab.run(
            f'for i in 1 2 3; do echo {node} >{scope}/cpuset.mems; '
            f'echo 0-1 >{scope}/cpuset.mems; done',
            timeout=200,
        )
    assert home_share(lab.guests.report()['w'], node) > 0.98


def run_labmove(lab, do='move', **request):
    """Run labmove.py; return the last line that it writes."""
    request = {'do': do, 'guest': 'w', 'node': 0, 'cpus': '0-1', **request}
    done = lab.run(MOVE, timeout=300, stdin=json.dumps(request))
    return json.loads(done.stdout.splitlines()[-1])


def assert_moved(lab, node=0):
    """Assert that CPUs and 98 % of bytes are on a node, with memory allowed everywhere.

    What stays are 3 MiB of QEMU's own read-only pages.
    """
    guest = lab.guests.report()['w']
    print(guest)
    assert guest['cpus'] == [('0-1', '2-3')[node]]
    assert guest['mems'] == ['0-1']
    assert home_share(guest, node) >= 0.98


def wait_for_hints(lab):
    """Use NUMA balancing until it has marked a part of the guest's pages; suspend the guest.

    If it were still on when the guest is resumed, its own migrations would also be counted.
    """
    lab.run(
        "hints() { awk '/^numa_pte_updates/ {print $2}' /proc/vmstat; }; before=$(hints); "
        'echo 1 >/proc/sys/kernel/numa_balancing; for i in $(seq 200); do '
        '[ $(hints) -gt $((before + 10000)) ] && virsh -q suspend w && '
        'echo 0 >/proc/sys/kernel/numa_balancing && exit 0; sleep 0.3; done; exit 1',
        timeout=200,
    )


@pytest.mark.parametrize('kind', ['thp', 'small', 'balanced', 'balanced-thp', 'memfd', 'v1'])
def test_a_guest_moves_completely_to_the_other_node(lab_of, kind):
    """A guest moves completely, remote accesses end, and transparent huge pages stay whole."""
    lab = lab_of(cgroup='v1') if kind == 'v1' else lab_of()
    lab.run(f'echo {"never" if kind in ("small", "balanced") else "always"} >{THP}')
    try:
        guest_on_node_1(lab, **({'tune': MEMFD} if kind == 'memfd' else {}))
        if kind.startswith('balanced'):
            wait_for_hints(lab)
        ended = run_labmove(lab)
        print(kind, ended)
        assert ended['state'] in ('done', 'partly')
        if kind.startswith('balanced'):  # which may have moved a part by itself
            lab.run('virsh -q resume w')
        else:
            assert ended['moved_bytes'] > 190 * MIB * 0.98
        assert_moved(lab)
        if kind == 'thp':
            assert ended['thp_before_bytes'] > 64 * MIB
            assert ended['thp_bytes'] >= 0.5 * ended['thp_before_bytes']
        accesses = lab.guests.count_accesses(4)['guests']['w']
        assert accesses['remote'] < 0.01 * (accesses['local'] + accesses['remote'])
        again = run_labmove(lab)
        assert again['moved_bytes'] < MIB and again['state'] in ('done', 'partly')
    finally:
        lab.run(f'echo always >{THP}')


def test_a_paced_move_leaves_the_guest_most_of_its_throughput(lab):
    """Paced to 48 MiB/s, the guest keeps most of its throughput; unpaced, both ways are timed."""
    guest_on_node_1(lab, 384)
    paced = run_labmove(lab, 'measure', how='ours', mib_per_sec=48, probes=False)
    runs = [paced]
    for how in ('ours', 'migratepages', 'ours', 'migratepages'):
        move_memory(lab, 1)
        runs.append(run_labmove(lab, 'measure', how=how, probes=False))
    for one in runs:
        felt = one['accesses_per_sec']
        print(
            f'{one["how"]:13}{one["moved_bytes"] / MIB:6.0f} MiB {one["seconds"]:6.2f} s '
            f"{one['bytes_per_sec'] / MIB:7.1f} MiB/s, guest's accesses/s before, during, "
            f'after: {felt["before"]}, {felt["during"]}, {felt["after"]}'
        )
        print(
            '   ',
            {
                k: v
                for k, v in one['result'].items()
                if k in ('state', 'refused', 'elapsed_s', 'thp_before_bytes', 'thp_bytes')
            },
        )
    assert paced['result']['rate'] < 48 * MIB * 1.15
    assert paced['accesses_per_sec']['during'] > 0.5 * paced['accesses_per_sec']['before']
    ours, theirs = (
        max(one['bytes_per_sec'] for one in runs[1:] if one['how'] == how)
        for how in ('ours', 'migratepages')
    )
    assert ours > 0.4 * theirs


def test_others_do_not_wait_for_a_move(lab):
    """A move delays others' writes of cgroup.procs far less than a narrowing write does."""
    guest_on_node_1(lab, 384)
    runs = {}
    for how, request in (
        ('none', {}),
        ('ours', {'mib_per_sec': 96}),
        ('unpaced', {}),
        ('narrow', {}),
    ):
        runs[how] = run_labmove(lab, 'measure', how='ours' if how == 'unpaced' else how, **request)
        if how != 'none':
            move_memory(lab, 1)
        print(
            f'{how:8}{runs[how]["seconds"]:6.2f} s {runs[how]["moved_bytes"] / MIB:6.0f} MiB',
            {
                what: {k: v and round(v, 1) for k, v in times.items()}
                for what, times in runs[how]['others'].items()
            },
        )
    slowest = {how: one['others']['cgroup.procs']['max_ms'] for how, one in runs.items()}
    assert slowest['ours'] < max(500, 0.5 * slowest['narrow'], 4 * slowest['none'])


def test_a_cancelled_move_leaves_memory_allowed_on_both_nodes(lab):
    """After a cancel, the CPUs are on either node, memory is unbound, and what moved has moved."""
    guest_on_node_1(lab)
    ended = run_labmove(lab, cancel_after_mib=64, undo=True)
    assert ended['state'] == 'cancelled' and ended['undone']
    assert 64 * MIB <= ended['moved_bytes'] < 190 * MIB
    guest = lab.guests.report()['w']
    assert (guest['cpus'], guest['mems']) == (['0-3'], ['0-1'])
    ended = run_labmove(lab, cancel_after_mib=32)
    guest = lab.guests.report()['w']
    assert (ended['state'], guest['cpus'], guest['mems']) == ('cancelled', ['0-1'], ['0-1'])
    assert set(
        lab.cpusets()[path] for path in lab.cpusets() if path.endswith('libvirt/vcpu0/cpuset.cpus')
    ) == {'0-1'}
    run_labmove(lab)
    assert_moved(lab)


def test_a_move_that_was_killed_can_be_completed(lab):
    """A move killed at any point leaves cpusets and guest intact, and a new start finishes it."""
    guest_on_node_1(lab)
    rng = random.Random(5)
    ours = ''
    for number in range(4):
        node, cpus = number % 2, ('0-1', '2-3')[number % 2]
        request = json.dumps(
            {
                'do': 'move',
                'guest': 'w',
                'node': node,
                'mib_per_sec': 32,
                'cpus': cpus,
                'ours': ours,
            }
        )
        seconds, ours = rng.uniform(0, 5), cpus
        lab.run('cat >/run/request', stdin=request)
        killed = lab.run(
            f'rm -f /run/move.log; {MOVE} </run/request >/run/move.log & pid=$!; '
            'until [ -s /run/move.log ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done; '
            f'sleep {seconds:.2f}; kill -9 $pid; wait $pid',
            timeout=200,
            check=False,
        )
        assert killed.returncode in (0, 128 + signal.SIGKILL), killed.stderr
        guest = lab.guests.report()['w']
        print(number, seconds, lab.run('tail -n 1 /run/move.log').stdout, guest)
        assert guest['cpus'] == [cpus] and guest['mems'] == ['0-1']
        ended = run_labmove(lab, node=node, cpus=cpus, ours=ours)
        assert ended['state'] in ('done', 'partly')
        assert_moved(lab, node)
    passes = lab.guests.report()['w']['passes']
    lab.guests.count_accesses(4)
    assert lab.guests.report()['w']['passes'] > passes


def test_a_full_node_takes_only_what_leaves_its_reserve(lab):
    """A full node takes what leaves its reserve; no guest is killed; the rest follows later."""
    guest_on_node_1(lab)
    room = (
        'from nova_numa_pmc.host.page_moves import node_room; '
        'print(node_room.read()[0].room_bytes >> 20)'
    )
    room_mib = int(lab.run(f'python3 -c {shlex.quote(room)}').stdout)
    lab.skew(node=0, mib=max(1, room_mib - 256 - 16 - 64))
    ended = run_labmove(lab)
    print(room_mib, ended)
    assert ended['state'] == 'full' and ended['moved_bytes'] < 150 * MIB
    guest = lab.guests.report()['w']
    assert (guest['cpus'], guest['mems']) == (['0-1'], ['0-1'])
    assert lab.oom_kills() == 0 and lab.running() == ['w']
    lab.unskew(node=0)
    assert run_labmove(lab)['state'] in ('done', 'partly')
    assert_moved(lab)


def test_a_guest_that_ends_during_its_move_is_reported(lab):
    """The mover reports that the guest has ended, and nothing else happens."""
    guest_on_node_1(lab)
    request = json.dumps({'do': 'move', 'guest': 'w', 'node': 0, 'mib_per_sec': 16, 'cpus': '0-1'})
    done = lab.run(
        f'(sleep 4; virsh destroy w) & echo {shlex.quote(request)} | {MOVE} 2>&1; wait',
        timeout=200,
        check=False,
    )
    print(done.stdout[-800:])
    assert 'GuestGone' in done.stdout
