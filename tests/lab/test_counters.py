# SPDX-License-Identifier: Apache-2.0
"""Compare the machine's counters with walks of known sizes on known nodes."""

import time

import pytest

LINE_BYTES, MIB = 64, 1 << 20
WALK_MIB, PASSES = 8, 10  # eight times the model's last-level cache
LINES_A_PASS = WALK_MIB * MIB // LINE_BYTES


def perf(lab, events, command, scope=''):
    """Run perf stat in the machine; return the counts in the order of the events."""
    text = lab.run(f'perf stat -x, {scope} -e {",".join(events)} {command} 2>&1 >/dev/null').stdout
    return [int(line.split(',')[0]) for line in text.splitlines() if 'numa_emu' in line]


def walk_command(cpu, node, passes):
    """Return the command for a walk of a node's memory from a CPU."""
    return f'/opt/lab/numawalk {cpu} {node} {WALK_MIB} {passes}'


@pytest.mark.parametrize('cpu, node', [(0, 0), (1, 1), (2, 0), (3, 1)])
def test_each_line_of_a_walk_is_counted_as_local_or_remote(lab, cpu, node):
    """Ten more passes cause ten times its lines, all local or all remote by CPU and node."""
    events = ['numa_emu/local_dram/', 'numa_emu/remote_dram/']
    short = perf(lab, events, walk_command(cpu, node, 1))
    long = perf(lab, events, walk_command(cpu, node, 1 + PASSES))
    local, remote = (b - a for a, b in zip(short, long))
    expected, other = (local, remote) if cpu // 2 == node else (remote, local)
    assert expected == pytest.approx(PASSES * LINES_A_PASS, rel=0.02)
    assert abs(other) < 0.02 * PASSES * LINES_A_PASS


def test_a_memory_controller_counts_what_cpus_fetch_from_it(lab):
    """The node's memory controller counts what the CPUs fetch from it."""
    events = [
        f'numa_emu_imc_{node}/cas_{kind}/' for node in (0, 1) for kind in ('reads', 'writes')
    ]
    short = perf(lab, events, walk_command(0, 1, 1), scope='-a')
    long = perf(lab, events, walk_command(0, 1, 1 + PASSES), scope='-a')
    grown = [b - a for a, b in zip(short, long)]
    assert sum(grown[2:]) == pytest.approx(PASSES * LINES_A_PASS, rel=0.05)
    assert sum(grown[:2]) < 0.1 * sum(grown[2:])


def test_four_events_are_counted_at_the_same_time(lab):
    """Four events count all the time; each of eight counts for about half of it."""

    def running(events):
        line = f'perf stat -x, -C 0 -e {",".join(events)} {walk_command(0, 0, 60)} 2>&1 >/dev/null'
        text = lab.run(line).stdout
        rows = [row.split(',') for row in text.splitlines() if 'numa_emu' in row]
        return [float(row[4]) for row in rows]

    four = [f'numa_emu/{e}/' for e in ('local_dram', 'remote_dram', 'hits', 'instructions')]
    assert running(four) == [100.0] * 4
    assert all(20 < share < 80 for share in running(four * 2))


def test_a_guests_accesses_count_only_with_the_guest_modifier(lab):
    """The accesses of a KVM guest are counted only with the guest's modifier."""
    lab.guests.start([{'name': 'walker', 'memory_mib': 48, 'cmdline': 'duty=60'}])
    events = [
        'numa_emu/local_dram/G',
        'numa_emu/remote_dram/G',
        'numa_emu/local_dram/H',
        'numa_emu/remote_dram/H',
    ]
    local_g, remote_g, local_h, remote_h = perf(lab, events, 'sleep 4', scope='-a')
    assert local_g + remote_g > 20 * (local_h + remote_h)
    both = perf(lab, ['numa_emu/local_dram/GH', 'numa_emu/remote_dram/GH'], 'sleep 2', scope='-a')
    assert sum(both) > 0


def test_a_guests_accesses_are_remote_until_its_memory_follows(lab):
    """A guest bound to the far node is over 99 % remote; once its memory has moved, under 1 %."""
    lab.guests.start([{'name': 'walker', 'memory_mib': 48, 'cmdline': 'duty=60'}])
    group = lab.run('ls -d /sys/fs/cgroup/machine.slice/*walker.scope').stdout.strip()
    lab.run(f"echo 0-1 >'{group}/cpuset.cpus'; echo 1 >'{group}/cpuset.mems'")
    wrong = lab.guests.count_accesses(3)['guests']['walker']
    lab.run(f"echo 0 >'{group}/cpuset.mems'")
    rates = lab.guests.count_accesses(3)['guests']['walker']
    assert wrong['remote'] > 0.99 * (wrong['local'] + wrong['remote'])
    assert rates['remote'] < 0.01 * (rates['local'] + rates['remote'])
    assert set(lab.guests.report()['walker']['bytes']) == {0, 1}


# Instructions per second of each vCPU: enough for the guest's timer ticks to be a small part, and
# far below what two host cores can do of loops in registers (500 million a second each).
PACE = 60_000_000


def count_loops(lab, cpus, seconds=3):
    """Run one loop per listed CPU in parallel; return the total number of loops done."""
    listed = ' '.join(map(str, cpus))
    line = f'for c in {listed}; do /opt/lab/numawalk spin $c {seconds} & done; wait'
    return sum(int(n) for n in lab.run(line).stdout.split())


@pytest.mark.full
def test_paced_loops_on_half_of_the_cpus_do_half_the_work(lab):
    """Four loops on two of four vCPUs get half of what they get on four; one gets a quarter."""
    lab.machine.pace(PACE)
    spread, piled, one = (count_loops(lab, cpus) for cpus in ([0, 1, 2, 3], [0, 0, 1, 1], [0]))
    print(f'work done: piled/spread {piled / spread:.3f}, one/spread {one / spread:.3f}')
    assert piled / spread == pytest.approx(0.5, abs=0.06)
    assert one / spread == pytest.approx(0.25, abs=0.04)


@pytest.mark.full
def test_paced_guests_on_half_of_the_cpus_do_half_the_work(lab):
    """Four guests that only compute get half the work done on vCPUs 0-1 as on all four."""
    names = [f'w{i}' for i in range(4)]
    lab.guests.start(
        [{'name': n, 'memory_mib': 16, 'cmdline': 'mode=cpu', 'paused': True} for n in names]
    )
    lab.run(''.join(f'virsh -q resume {n};' for n in names))
    groups = [
        lab.run(f'ls -d /sys/fs/cgroup/machine.slice/*{n}.scope').stdout.strip() for n in names
    ]

    def work_per_sec(cpus):
        """Count the guests' instructions on the host: a reader inside would also be paced."""
        lab.run(''.join(f"echo {c} >'{g}/cpuset.cpus';" for g, c in zip(groups, cpus)))
        lab.machine.pace(PACE)
        time.sleep(2)
        before, began = lab.machine.counts(), time.monotonic()
        time.sleep(6)
        after, ended = lab.machine.counts(), time.monotonic()
        lab.machine.pace(0)
        return sum(
            b['guest_instructions'] - a['guest_instructions'] for a, b in zip(before, after)
        ) / (ended - began)

    piled, spread = work_per_sec([0, 0, 1, 1]), work_per_sec([0, 1, 2, 3])
    print(
        f'M instructions/s: piled {piled / 1e6:.1f}, spread {spread / 1e6:.1f}, '
        f'ratio {piled / spread:.3f}'
    )
    assert spread > 2 * PACE
    assert piled / spread == pytest.approx(0.5, abs=0.1)
