# SPDX-License-Identifier: Apache-2.0
"""What our sampling says of guests, beside what ``perf stat`` says of the same time."""

import json
import pathlib
import shlex

import pytest

COMPARE = pathlib.Path(__file__).resolve().parent.parent / 'functional/compare_with_perf_stat.py'
GUESTS = 6


def test_same_window_as_perf_stat(lab):
    """Per thread, CPU and control group, within 1 % of perf over one window."""
    lab.machine.push([COMPARE], '/opt/lab')
    done = lab.run('python3 /opt/lab/compare_with_perf_stat.py', timeout=200, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    for scope in ('thread', 'cpu', 'cgroup'):
        assert f'\n{scope}' in '\n' + done.stdout


def sampled(lab, seconds=4):
    """Return {name: guest} of our own sample over some seconds, perf's counts beside it."""
    ours = f'nova-numa-rebalance top --once --json --interval {seconds}'
    script = f'({ours} >/run/sample.json) & sleep 1; wait'
    lab.run(f'sh -c {shlex.quote(script)}', timeout=200)
    sample = json.loads(lab.run('cat /run/sample.json').stdout)
    return {guest['name']: guest for guest in sample['guests']}


def bind(lab, name, cpus, node):
    """Hold a guest's CPUs and memory as nobody of ours would."""
    group = lab.run(f'ls -d /sys/fs/cgroup/machine.slice/*{name}.scope').stdout.strip()
    lab.run(f"echo {cpus} >'{group}/cpuset.cpus'; echo {node} >'{group}/cpuset.mems'")


def ratio(counts):
    """Return the remote share of perf's counts."""
    return counts['remote'] / (counts['local'] + counts['remote'])


def test_guests_on_the_wrong_node_and_then_on_the_right_one(lab):
    """Six guests at once: over 99 % remote, and under 1 % after the move, ours and perf's."""
    names = [f'w{i}' for i in range(GUESTS)]
    lab.guests.start([{'name': name, 'memory_mib': 16, 'cmdline': 'duty=30'} for name in names])
    for wrong in (True, False):
        for at, name in enumerate(names):
            home = at % 2
            bind(lab, name, '0-1' if home == 0 else '2-3', 1 - home if wrong else home)
        ours, theirs = sampled(lab), lab.guests.window(4)['guests']
        for name in names:
            print(name, ours[name]['source'], ours[name]['remote_ratio'], ratio(theirs[name]))
            for found in (ours[name]['remote_ratio'], ratio(theirs[name])):
                assert (found > 0.99) if wrong else (found < 0.01), name
            assert ours[name]['remote_ratio'] == pytest.approx(ratio(theirs[name]), abs=0.01)
