# SPDX-License-Identifier: Apache-2.0
"""Compare our samples of guests with ``perf stat`` over the same time."""

import json
import pathlib

import pytest

COMPARE = pathlib.Path(__file__).resolve().parent.parent / 'functional/compare_with_perf_stat.py'


def test_our_counts_equal_those_of_perf_stat(lab):
    """Per thread and CPU, our counts are within 1 % of perf over one window.

    The worker's pages alternate between the nodes, so that there is much of both to count: between
    our counters and perf's, the kernel causes about a hundred accesses at a context switch.
    """
    lab.machine.push([COMPARE], '/opt/lab')
    done = lab.run(
        'numactl --interleave=all python3 /opt/lab/compare_with_perf_stat.py',
        timeout=200,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    for scope in ('thread', 'cpu'):
        assert f'\n{scope}' in '\n' + done.stdout


def take_sample(lab, seconds=4):
    """Return {name: guest} of our own sample over some seconds."""
    sample = json.loads(
        lab.run(f'nova-numa-rebalance top --once --json --interval {seconds}', timeout=200).stdout
    )
    print(sample['source'], sample['problems'])
    return {guest['name']: guest for guest in sample['guests']}


def remote_ratio(counts):
    """Return the remote share of perf's counts."""
    return counts['remote'] / (counts['local'] + counts['remote'])


@pytest.mark.full  # test_counters.py has it with one guest and perf alone
def test_our_counts_and_perfs_agree_which_guests_are_remote(lab):
    """For six guests, we and perf count over 99 % remote, and under 1 % after the move.

    Their memory is bound and their CPUs are moved: moving pages takes minutes in emulation.
    """
    names = [f'w{i}' for i in range(6)]
    memory = "<numatune><memory mode='strict' nodeset='{}'/></numatune>"
    lab.guests.start(
        [
            {'name': name, 'memory_mib': 16, 'cmdline': 'duty=10', 'tune': memory.format(at % 2)}
            for at, name in enumerate(names)
        ]
    )
    for wrong in (True, False):
        for at, name in enumerate(names):
            group = lab.run(f'ls -d /sys/fs/cgroup/machine.slice/*{name}.scope').stdout.strip()
            cpus = ('0-1', '2-3')[(at + wrong) % 2]
            lab.run(f"echo {cpus} >'{group}/cpuset.cpus'")
        ours, theirs = take_sample(lab), lab.guests.count_accesses(4)['guests']
        for name in names:
            mine, perfs = ours[name]['remote_ratio'], remote_ratio(theirs[name])
            print(f"{name} {ours[name]['source']}: ours {mine:.5f}, perf's {perfs:.5f}")
            for local in (mine, perfs):
                assert local > 0.99 if wrong else local < 0.01, name
