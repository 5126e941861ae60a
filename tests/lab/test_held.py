# SPDX-License-Identifier: Apache-2.0
"""Test that guests are local from their first page and that libvirt's commands work on them.

``pytest -s -k libvirts_commands`` prints the table of commands; ``LAB_STARTS=500 pytest -s --full
-k many_starts`` makes 500 starts, with a fresh machine for every 50.
"""

import json
import os
import re
import time

import pytest
from machine.agent import Agent
from machine.guests import guests_per_node, home, home_share
from machine.image import LAB
from machine.vm import LAB_DIR

#: A guest for each command.
COMMANDS = {
    'vcpupin': 'vp',
    'emulatorpin': 'ep',
    'iothreadpin': 'ip',
    'numatune': 'nt',
    'setvcpus': 'sv',
    'setmem': 'sm',
    'AllowedCPUs': 'ac',
    'cpuset by hand': 'hand',
}
THREADS = {
    'vcpupin': 'vcpu0',
    'emulatorpin': 'emulator',
    'iothreadpin': 'iothread1',
    'cpuset by hand': 'vcpu0',
}
#: libvirt's command that, with all CPUs, ends each pin; it needs the guest.
UNPIN = {
    'vcpupin': 'vcpupin %s 0',
    'emulatorpin': 'emulatorpin %s',
    'iothreadpin': 'iothreadpin %s 1',
    'cpuset by hand': 'vcpupin %s 0',
}
OTHER_NODE = {0: ('2', '1'), 1: ('0', '0')}  # a CPU of the other node, and that node's number
#: Every run includes the commands that narrow our hold, and those that make a new thread.
FEW_COMMANDS = ('vcpupin', 'setvcpus')
#: AllowedCPUs= requires cgroup v2 (systemd.resource-control(5)).
NOT_ON_V1 = ('AllowedCPUs',)
#: QEMU's own pages that the kernel may refuse to move (EACCES).
REFUSED_BYTES = 1 << 20
#: Starts on one machine: emulation gets slower with each new QEMU whose code it translates.
BATCH = 50
STARTED_LINE = re.compile(
    r'guest (\S+): started: .*?(?:(\d+) of (\d+) KiB were elsewhere|\(local)'
)


def shares_elsewhere(lab):
    """Return {guest: fraction of its bytes on other nodes at ``started``}, as the hook logs it."""
    elsewhere_shares = {}
    for line in lab.journal():
        match = STARTED_LINE.match(line)
        if match:
            elsewhere_shares[match[1]] = int(match[2]) / int(match[3]) if match[2] else 0.0
    return elsewhere_shares


def away_bytes(guest):
    """Return how many of a guest's bytes are not on its home node."""
    return sum(guest['bytes'].values()) - guest['bytes'][home(guest)]


def pinnable(name):
    """Describe a guest that each command can be given, paused so that the machine is fast."""
    return {
        'name': name,
        'memory_mib': 64,
        'paused': True,
        'balloon': 'virtio',
        'vcpus': 2,
        'vcpu': "placement='static' current='1'",
        'tune': '<iothreads>1</iothreads>',
    }


@pytest.mark.parametrize(
    ('cgroup', 'commands'),
    [
        pytest.param('v2', FEW_COMMANDS, id='few'),
        pytest.param('v2', tuple(COMMANDS), id='v2', marks=pytest.mark.full),
        pytest.param('v1', tuple(COMMANDS), id='v1', marks=pytest.mark.full),
    ],
)
def test_libvirts_commands_work_on_a_held_guest(lab_of, cgroup, commands):
    """Each command works on a placed guest, the agent respects it, and unpin reverts it."""
    names = {command: COMMANDS[command] for command in commands}
    pinned = [command for command in THREADS if command in names]
    lab = lab_of(cgroup=cgroup)
    lab.install_hook()
    lab.machine.push([LAB / 'inside/labcommands.py'], LAB_DIR)
    lab.guests.start([pinnable(name) for name in names.values()])
    lab.wait_for_hooks()
    agent = Agent(lab)
    try:
        agent.start(rebalance='off')
        before = lab.guests.report()
        args = ' '.join(
            "'%s=%s,%s,%s'"
            % (command, name, *OTHER_NODE[0 if before[name]['cpus'] == ['0-1'] else 1])
            for command, name in names.items()
        )
        ask = f'python3 {LAB_DIR}/labcommands.py '
        done = json.loads(lab.run(ask + args, timeout=300).stdout)
        agent.after(2)
        later = json.loads(lab.run(ask + '--no-run ' + args, timeout=300).stdout)
        for command, outcome in done.items():
            print(
                '%-15s %-5s %-9s later %-9s %s'
                % (
                    command,
                    'works' if outcome['works'] else 'FAILS',
                    outcome['effect'],
                    later[command]['effect'],
                    outcome['message'],
                )
            )
        expected = [command for command in names if cgroup == 'v2' or command not in NOT_ON_V1]
        assert [command for command in expected if not done[command]['works']] == []
        assert [command for command in expected if not later[command]['works']] == []
        shown = {
            guest['name']: guest['pinned']
            for guest in json.loads(lab.run('nova-numa-rebalance status --json').stdout)['guests']
        }
        assert {command: list(shown[names[command]]) for command in pinned} == {
            command: [THREADS[command]] for command in pinned
        }
        # The plugged vCPU is held as the first one is.
        assert lab.guests.report()['sv']['cpus'] == before['sv']['cpus']
        for command in pinned:
            lab.run('virsh -q %s 0-3 --live' % (UNPIN[command] % names[command]))
        agent.after(2)
        after = lab.guests.report()
        print(lab.journal()[-3:], agent.journal()[-12:])
        for name in (names[command] for command in pinned):
            assert after[name]['cpus'] == before[name]['cpus'], (name, after[name])
    finally:
        agent.stop()


def test_the_agent_holds_a_guest_whose_hook_was_killed(lab):
    """If the child process of ``started`` is killed, the agent holds the guest two ticks later."""
    lab.install_hook()
    agent = Agent(lab)
    site = '$(cd /; python3 -c "import nova_numa_pmc as p; print(p.__path__[0])")'
    lab.run(
        f'ln -sfn {site} /run/site; cp -a /run/site/placing/starts.py /run/starts.py; '
        'echo \'import os, sys; "started" in sys.argv and os.kill(os.getpid(), 9)\' '
        '>>/run/site/placing/starts.py'
    )
    try:
        agent.start(rebalance='off')
        lab.guests.start([{'name': 'g0', 'memory_mib': 64}])
        # QEMU was narrowed before; nothing has been handed over to the threads' groups.
        assert set(
            lab.cpusets()[path]
            for path in lab.cpusets()
            if path.endswith('libvirt/vcpu0/cpuset.cpus')
        ) == {''}
        agent.after(2)
        guest = lab.guests.report()['g0']
        print(guest, agent.journal()[-4:])
        assert guest['cpus'] == [['0-1'], ['2-3']][home({'bytes': guest['bytes']})]
        assert set(
            lab.cpusets()[path]
            for path in lab.cpusets()
            if path.endswith('libvirt/vcpu0/cpuset.cpus')
        ) == set(guest['cpus'])
        assert any('now placed on node' in line for line in agent.journal())
    finally:
        lab.run('cp -a /run/starts.py $(readlink /run/site)/placing/starts.py')
        agent.stop()


def test_guests_are_placed_within_their_slice_and_follow_a_limit_of_their_scope(lab, agent):
    """Guests of a slice get its CPUs only, and a guest's promise follows its scope's limit."""
    lab.run(
        'cat >/run/systemd/system/machine-nort.slice && systemctl daemon-reload',
        stdin='[Slice]\nAllowedCPUs=2-3\n',
    )
    partition = '<resource><partition>/machine/nort</partition></resource>'
    try:
        agent.start(rebalance='off')
        lab.guests.start([{'name': f'n{at}', 'more': partition} for at in range(3)])
        lab.guests.start([{'name': 'free'}])
        guests = lab.guests_after_hooks()
        assert [guests[f'n{at}']['cpus'] for at in range(3)] == [['2-3']] * 3
        home_before = home(guests['free'])
        other = [('0-1', 0), ('2-3', 1)][1 - home_before]
        lab.run(
            r"scope=$(sed 's,.*/\(machine-qemu[^/]*[.]scope\).*,\1,' "
            '/proc/$(cat /run/libvirt/qemu/free.pid)/cgroup); '
            f'systemctl set-property --runtime "$scope" AllowedCPUs={other[0]}'
        )
        agent.after(2)
        guests = lab.guests.report()
        promised = {promise['name']: promise['cpu_nodes'] for promise in lab.promised()}
        print(guests, promised, agent.journal()[-8:])
        assert promised == {**{f'n{at}': [1] for at in range(3)}, 'free': [other[1]]}
        assert guests['free']['cpus'] == [other[0]]
        assert {home(guests[f'n{at}']) for at in range(3)} == {1}, 'memory left its guests'
        findings = json.loads(
            lab.run('nova-numa-rebalance check --role compute --json', check=False).stdout
        )['findings']
        messages = [one['message'] for one in findings if one['code'] == 'cpus-limited']
        assert any('machine-nort.slice allows only' in message for message in messages)
        assert any('free.scope allows only' in message for message in messages), messages
    finally:
        lab.guests.stop()
        lab.run('rm /run/systemd/system/machine-nort.slice; systemctl daemon-reload')


@pytest.mark.full
def test_the_agent_places_a_guest_that_started_without_the_lock(lab, agent):
    """If another process holds the promises' lock, the guest starts, and the agent places it."""
    agent.start(rebalance='off')
    lab.run(
        'systemd-run -q --unit=lab-lock flock /run/nova-numa-pmc/lock sleep 600; '
        'while flock -n /run/nova-numa-pmc/lock true; do sleep 0.1; done'
    )
    try:
        started = lab.guests.start([{'name': 'g0', 'paused': True}])
        lab.wait_for_hooks()
        print(started, lab.journal()[-3:])
        before = lab.guests.report()['g0']['cpus']
    finally:
        lab.run('systemctl stop lab-lock')
    agent.after(2)
    cpus = lab.guests.report()['g0']['cpus']
    assert before == ['0-3'] and cpus in (['0-1'], ['2-3'])
    lab.guests.resume(['g0'])  # memory of paused guests is left where it is
    agent.until(
        lambda: lab.guests.report()['g0'],
        lambda guest: (
            home(guest) == [['0-1'], ['2-3']].index(cpus)
            and (home_share(guest) >= 0.99 or away_bytes(guest) < REFUSED_BYTES)
        ),
        60,
    )
    assert any('now placed on node' in line for line in agent.journal())


@pytest.mark.parametrize(
    'cgroup, count',
    [
        ('v2', 8),
        pytest.param('v2', 32, marks=pytest.mark.full),
        pytest.param('v1', 16, marks=pytest.mark.full),
    ],
)
def test_guests_that_start_at_once_are_local_from_their_first_page(lab_of, cgroup, count):
    """Guests that start all at once are local; the agent fetches QEMU's first pages."""
    lab = lab_of(cgroup=cgroup)
    lab.install_hook()
    lab.run('journalctl --rotate; journalctl --vacuum-time=1s -q')
    specs = [
        {
            'name': f'g{at}',
            'memory_mib': 16,
            'cmdline': 'duty=5 touch=50',
            'vcpu': "placement='static' cpuset='0-3'" if at % 2 else "placement='static'",
        }
        for at in range(count)
    ]
    lab.guests.start(specs, parallel=count)
    guests, at_started = lab.guests_after_hooks(), shares_elsewhere(lab)
    print('elsewhere at started:', at_started)
    print('at home:', {name: round(home_share(guest), 4) for name, guest in guests.items()})
    assert guests_per_node(guests, 2) == [count // 2] * 2
    assert len(at_started) == count and max(at_started.values()) < 0.1
    assert all(guest['cpus'] == [['0-1'], ['2-3']][home(guest)] for guest in guests.values())
    agent = Agent(lab)
    try:
        agent.start(rebalance='off')
        agent.after(2)
        guests = agent.until(
            lab.guests.report,
            lambda guests: all(
                home_share(guest) >= 0.99 or away_bytes(guest) < REFUSED_BYTES
                for guest in guests.values()
            ),
            60,
        )
        print(
            'at home, later:',
            {name: round(home_share(guest), 4) for name, guest in guests.items()},
            agent.journal()[-4:],
        )
    finally:
        agent.stop()


def restart_libvirtd(lab):
    """Make libvirt start its guests as after a boot, without rebooting."""
    lab.run(
        'systemctl stop libvirtd.service libvirtd.socket libvirtd-ro.socket '
        'libvirtd-admin.socket; rm -rf /run/nova-numa-pmc /run/libvirt/qemu/autostarted; '
        'systemctl start libvirtd',
        timeout=200,
        check=False,
    )


def reboot(lab):
    """Reboot the machine."""
    lab.machine.reboot()


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('restart', [restart_libvirtd, reboot])
def test_autostarted_guests_are_spread_evenly(lab_of, restart):
    """At a boot, libvirt starts all of its guests, and nothing is promised before."""
    lab = lab_of(fresh=restart is reboot)
    lab.install_hook()
    names = [f'g{at}' for at in range(12)]
    lab.guests.start(
        [{'name': name, 'memory_mib': 16, 'cmdline': 'duty=5 touch=50'} for name in names]
    )
    lab.wait_for_hooks()
    lab.guests.stop()
    try:
        lab.run(
            'echo d /run/guests >/etc/tmpfiles.d/guests.conf; '
            + '; '.join(
                f'virsh -q define /run/guests/{name}.xml; virsh -q autostart {name}'
                for name in names
            ),
            timeout=300,
        )
        restart(lab)
        for _ in range(240):
            if lab.running() == sorted(names):
                break
            time.sleep(1)
        guests = lab.guests_after_hooks()
        shares = {name: round(home_share(guest), 4) for name, guest in guests.items()}
        print('at home:', shares)
        assert guests_per_node(guests, 2) == [6, 6]
        assert min(shares.values()) >= 0.99
    finally:
        lab.run(
            'rm -f /etc/tmpfiles.d/guests.conf; '
            + '; '.join(
                f'virsh -q autostart --disable {name}; virsh -q destroy {name}; '
                f'virsh -q undefine {name}'
                for name in names
            ),
            timeout=300,
            check=False,
        )


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize('cgroup', ['v1', 'v2'])
@pytest.mark.parametrize('batch', range(int(os.environ.get('LAB_STARTS', '50')) // BATCH))
def test_none_of_many_starts_fails(lab_of, cgroup, batch):
    """None of LAB_STARTS starts fails, for guests with and without a <vcpu cpuset>."""
    lab = lab_of(fresh=True, cgroup=cgroup, cpus_per_node=1, pmu=False)
    lab.install_hook()
    for _ in range(BATCH // 10):
        specs = [
            {
                'name': f'g{at}',
                'memory_mib': 16,
                'paused': True,
                'vcpu': "placement='static' cpuset='0-1'" if at % 2 else "placement='static'",
            }
            for at in range(10)
        ]
        started = lab.guests.start(specs, parallel=2, check=False)
        failed = {name: outcome for name, outcome in started.items() if outcome['code']}
        assert not failed, failed
        lab.guests.stop()
    lines = [line for line in lab.journal() if 'left as it is' in line or 'held once' in line]
    assert lines == []
    print(f'{cgroup}: {(batch + 1) * BATCH} starts, 0 failed', flush=True)
