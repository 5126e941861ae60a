# SPDX-License-Identifier: Apache-2.0
"""Test where real libvirt starts guests with the hook, on two nodes of 2 GiB.

Guests' places come from the kernel (pages per node, the CPUs and nodes that threads may use) and
from perf, never from our own records. ``make lab`` starts six guests; ``make lab-full`` also
starts eight and sixteen at once, and ten shuffled orders.
"""

import random

import pytest
from machine.guests import STARTED_AT_HOME, guests_per_node, home, home_share

CPUS = {0: ['0-1'], 1: ['2-3']}  # of the default machine's nodes
BOTH_NODES = ['0-1']
NUMA_NONE = (
    '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">'
    '<nova:package version="34.0.0"/><nova:flavor name="plain"><nova:extraSpecs>'
    '<nova:extraSpec name="numa_pmc:policy">none</nova:extraSpec>'
    '</nova:extraSpecs></nova:flavor></nova:instance>'
)


def equal_guests(count, memory_mib=64, cmdline='duty=20 touch=50', prefix='g'):
    """Describe equal guests."""
    return [
        {'name': f'{prefix}{i}', 'memory_mib': memory_mib, 'cmdline': cmdline}
        for i in range(count)
    ]


def assert_home(guests):
    """Assert that each guest's CPUs are one node's, and so are its bytes except QEMU's first."""
    for name, guest in guests.items():
        node = home(guest)
        assert guest['cpus'] == CPUS[node], (name, guest)
        assert guest['mems'] == BOTH_NODES, (name, guest)
        assert home_share(guest) >= STARTED_AT_HOME, (name, guest)


def assert_local(window):
    """Assert that fewer than 1 % of each guest's DRAM accesses in a window are remote, by perf."""
    for name, counts in window['guests'].items():
        total = counts['local'] + counts['remote']
        assert total > 100_000, (name, counts)
        assert counts['remote'] < 0.01 * total, (name, counts)


def test_six_guests_are_spread_evenly_although_free_memory_is_not(lab):
    """Each node gets three guests, CPUs and memory, with remote accesses below 1 %."""
    lab.install_hook()
    lab.skew(node=0, mib=500)
    lab.guests.start(equal_guests(6))
    guests = lab.guests_after_hooks()
    assert guests_per_node(guests, 2) == [3, 3]
    assert_home(guests)
    accesses = lab.guests.count_accesses(4)
    print(accesses)
    assert_local(accesses)
    lab.guests.stop()
    assert lab.promised() == []


@pytest.mark.full  # test_held.py starts eight at once
@pytest.mark.parametrize('count', [8, 16])
def test_guests_that_start_at_once_are_spread_evenly(lab, count):
    """No two starts decide from the same view, though free memory suggests otherwise."""
    lab.install_hook()
    lab.skew(node=1, mib=300)
    lab.guests.start(equal_guests(count, 16, 'duty=10'), parallel=count)
    guests = lab.guests_after_hooks()
    print({name: (guest['cpus'], guest['bytes']) for name, guest in guests.items()})
    assert sorted(guest['cpus'][0] for guest in guests.values()) == sorted(
        (CPUS[0] + CPUS[1]) * (count // 2)
    )
    assert_home(guests)
    assert len(lab.promised()) == count


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_guests_of_three_sizes_are_spread_evenly_in_any_order(lab):
    """Guests of three sizes are spread evenly over the nodes in each of ten orders."""
    lab.install_hook()
    lab.skew(node=0, mib=500)
    order = [dict(spec, memory_mib=16 * (1 + i % 3)) for i, spec in enumerate(equal_guests(6))]
    for seed in range(10):
        random.Random(seed).shuffle(order)
        lab.guests.start(order)
        guests = lab.guests_after_hooks()
        print(seed, [spec['name'] for spec in order], guests_per_node(guests, 2))
        assert guests_per_node(guests, 2) == [3, 3]
        assert_home(guests)
        lab.guests.stop()


def test_guests_placed_by_others_are_counted_and_keep_their_place(lab):
    """Guests with pins of their own are not touched, but are counted.

    The CPUs of a guest whose memory alone is bound follow that memory.
    """
    lab.install_hook()
    theirs = [
        dict(
            equal_guests(1)[0],
            name='strict',
            tune="<numatune><memory mode='strict' nodeset='1'/></numatune>",
        ),
        dict(
            equal_guests(1)[0],
            name='pinned',
            cputune="<cputune><vcpupin vcpu='0' cpuset='2-3'/></cputune>",
        ),
        dict(equal_guests(1)[0], name='opted-out', metadata=NUMA_NONE),
    ]
    lab.guests.start(theirs)
    lab.wait_for_hooks()
    before = lab.cpusets()
    guests = lab.guests.report()
    print(guests)
    assert (guests['strict']['cpus'], guests['strict']['mems']) == (CPUS[1], ['1'])
    assert (guests['pinned']['cpus'], guests['pinned']['mems']) == (['2-3'], BOTH_NODES)
    assert (guests['opted-out']['cpus'], guests['opted-out']['mems']) == (['0-3'], BOTH_NODES)
    lab.guests.start(equal_guests(1))
    guests = lab.guests_after_hooks()
    assert guests['g0']['cpus'] == CPUS[0], 'node 1 has the pinned guest'
    after = lab.cpusets()
    assert before == {path: text for path, text in after.items() if path in before}


def test_a_resumed_or_restored_guest_is_on_one_node(lab):
    """A guest is on one node after each, and a restored one logs nothing of ours."""
    lab.install_hook()
    lab.guests.start(equal_guests(2))
    lab.wait_for_hooks()
    lab.run('virsh suspend g0 && virsh resume g0')
    lab.run('virsh save g0 /run/g0.saved && virsh save g1 /run/g1.saved', timeout=200)
    assert lab.promised() == []
    lab.run(
        'virsh restore /run/g0.saved & virsh restore /run/g1.saved & wait; rm /run/g?.saved',
        timeout=200,
    )
    guests = lab.guests_after_hooks()
    assert sorted(lab.run('virsh -q list --name').stdout.split()) == ['g0', 'g1']
    assert guests_per_node(guests, 2) == [1, 1]
    for guest in guests.values():
        assert guest['cpus'] == CPUS[home(guest)] and home_share(guest) >= STARTED_AT_HOME
    passes = {name: guest['passes'] for name, guest in guests.items()}
    lab.guests.count_accesses(3)
    assert all(guest['passes'] > passes[name] for name, guest in lab.guests.report().items())
