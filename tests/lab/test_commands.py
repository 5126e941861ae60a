# SPDX-License-Identifier: Apache-2.0
"""Test commands on a host with a crowded node, and compare their reports with the kernel's.

These tests take minutes: `make lab-full` runs them.
"""

import json

import pytest
from machine.agent import INTERVAL_S
from machine.guests import guests_per_node, home, home_share

pytestmark = pytest.mark.full

BUSY = {'memory_mib': 16, 'cmdline': 'duty=100 touch=50'}
CPUS = {0: '0-1', 1: '2-3'}
DONE, MOVES_WOULD_PAY = 0, 2  # exit codes


class Operator:
    """An operator at the machine's shell."""

    def __init__(self, lab):
        self.lab = lab

    def run(self, command, code=DONE):
        """Run a command that must end with an exit code; return its output."""
        done = self.lab.run(f'nova-numa-rebalance {command}', timeout=300, check=False)
        print(f'$ nova-numa-rebalance {command} -> {done.returncode}\n{done.stdout}{done.stderr}')
        assert done.returncode == code, (command, done.returncode, done.stderr)
        return done.stdout

    def run_any(self, command):
        """Run a command, whatever it ends with, and show what it says."""
        done = self.lab.run(f'nova-numa-rebalance {command}', timeout=600, check=False)
        print(f'$ nova-numa-rebalance {command} -> {done.returncode}\n{done.stdout}{done.stderr}')

    def run_json(self, command, code=DONE):
        """Run a command that answers in JSON; return the answer."""
        return json.loads(self.run(command + ' --json', code))

    def per_node(self):
        """Return how many guests each node holds, based on their bytes."""
        return guests_per_node(self.lab.guests.report(), 2)


@pytest.fixture
def operator(lab):
    """Provide an operator of a host that has four busy guests on node 0 and none on node 1."""
    lab.install_hook()
    names = [f'g{i}' for i in range(4)]
    lab.start_at([{**BUSY, 'name': name} for name in names], dict.fromkeys(names, 0))
    yield Operator(lab)


def assert_together(lab, homes):
    """Assert that each guest's CPUs and memory are on its node, according to the kernel.

    Of 30 MiB or more, 3 MiB of QEMU's own read-only pages stay.
    """
    for name, guest in lab.guests.report().items():
        assert guest['cpus'] == [CPUS[homes[name]]], (name, guest)
        assert home_share(guest, homes[name]) >= 0.88, (name, guest)


def test_a_plan_is_applied_and_undone_without_an_agent(operator):
    """A plan is applied and recorded in the history, and undo restores the original places."""
    lab = operator.lab
    names = sorted(lab.guests.report())
    planned = operator.run_json('plan --interval 10', MOVES_WOULD_PAY)
    assert len(planned['moves']) == 2 and operator.per_node() == [4, 0]
    applied = operator.run_json('apply --interval 10 --yes')
    moved = {one['name'] for one in applied['outcome']['entries']}
    assert len(moved) == 2
    assert_together(lab, {name: int(name in moved) for name in names})
    why = {guest['name']: guest['why'] for guest in operator.run_json('status')['guests']}
    assert {name for name in names if 'moved by apply' in why[name]} == moved
    operator.run('undo --yes')
    assert_together(lab, dict.fromkeys(names, 0))
    history = [json.loads(line) for line in operator.run('history --json').splitlines()]
    assert [one['mover'] for one in history] == ['apply'] * 2 + ['undo'] * 2
    assert {one['result'] for one in history} == {'done'}
    assert sorted(lab.running()) == names and not lab.oom_kills()


def test_guests_that_float_five_to_one_end_at_three_to_three_with_their_memory(lab):
    """The package is installed under guests that float, with the memory of five on one node."""
    homes = {f'f{i}': int(i == 5) for i in range(6)}
    specs = [{'memory_mib': 64, 'cmdline': 'duty=60', 'name': name} for name in homes]
    lab.guests.start([{**spec, 'paused': True} for spec in specs])
    lab.guests.resume(homes)
    with lab.guests.frozen():
        lab.guests.move_memory(homes)
    operator = Operator(lab)
    assert operator.per_node() == [5, 1]
    lab.install_hook()
    for _ in range(3):  # what an interval shows of emulated guests varies
        operator.run_any('apply --interval 10 --yes')
        if operator.per_node() == [3, 3]:
            break
    report = lab.guests.report()
    assert operator.per_node() == [3, 3], report
    assert_together(lab, {name: home(guest) for name, guest in report.items()})
    assert lab.running() == sorted(homes) and not lab.oom_kills()


def test_a_signal_ends_apply_and_leaves_guests_as_promised(operator):
    """A signal ends a slow apply: the move in progress is reverted, and nothing is lost."""
    lab = operator.lab
    lab.run("printf '[agent]\\nmove_mib_per_s = 1\\n' >>/etc/nova-numa-pmc/nova-numa-pmc.conf")
    # It writes its name to that file when it starts to move; the signal is sent then.
    done = lab.run(
        'nova-numa-rebalance apply --interval 5 --yes >/run/apply.log 2>&1 & p=$!; '
        'for i in $(seq 300); do grep -q apply /run/nova-numa-pmc/turns && break; sleep 0.5; done;'
        ' sleep 1; kill -TERM $p; wait $p; echo $?; cat /run/apply.log; rm /run/apply.log',
        timeout=400,
    )
    print(done.stdout)
    assert done.stdout.split()[0] in '13' and 'ended by signal 15' in done.stdout
    promised = {one['name']: one['cpu_nodes'] for one in lab.promised()}
    for name, guest in lab.guests.report().items():
        assert [CPUS[node] for node in promised[name]] == guest['cpus'], (name, guest)
    operator.run('plan --interval 10', MOVES_WOULD_PAY)  # nothing remains locked


def test_a_suspended_apply_keeps_no_guest_from_being_held(operator, agent):
    """Guests are held while apply is stopped; it is named, and ends once it is continued."""
    lab = operator.lab
    agent.start(rebalance='off')
    agent.after(1)
    lab.run("printf 'move_mib_per_s = 1\n' >>/etc/nova-numa-pmc/nova-numa-pmc.conf")
    lab.run(
        'nova-numa-rebalance apply --interval 5 --yes >/run/apply.log 2>&1 & '
        'echo $! >/run/apply.pid; for i in $(seq 300); do '
        'grep -q \'apply.*"guests": \\["\' /run/nova-numa-pmc/turns && break; sleep 0.5; done; '
        'sleep 2; kill -STOP $(cat /run/apply.pid)',
        timeout=400,
    )
    [moving] = json.loads(lab.run('cat /run/nova-numa-pmc/turns').stdout)['turns'][-1]['guests']
    resting = [one['name'] for one in lab.promised() if one['uuid'] != moving]
    lab.run(
        'for f in /sys/fs/cgroup/machine.slice/machine-qemu*/libvirt/{vcpu*,emulator}/cpuset.cpus;'
        ' do echo 0-3 >$f; done'
    )

    def held():
        report = lab.guests.report()
        return [report[name]['cpus'] for name in resting]

    agent.until(held, lambda cpus: cpus == [[CPUS[0]]] * len(resting), 60)
    problems = agent.until(lambda: operator.run_json('status')['problems'], bool, 90)
    assert any('apply' in text and 'suspended or hangs' in text for text in problems), problems
    assert '[mover-suspended]' in lab.run('nova-numa-rebalance check', check=False).stdout
    lab.run(
        'kill -CONT $(cat /run/apply.pid); while kill -0 $(cat /run/apply.pid); do sleep 0.5; done'
    )
    log = lab.run('cat /run/apply.log; rm /run/apply.log /run/apply.pid').stdout
    assert 'expired while it did not go on' in log, log
    agent.after(1)
    promised = {one['name']: one['cpu_nodes'] for one in lab.promised()}
    for name, guest in lab.guests.report().items():
        assert [CPUS[node] for node in promised[name]] == guest['cpus'], (name, guest)
    assert agent.failures() == [] and not operator.run_json('status')['problems']


def test_the_agent_moves_no_guest_that_is_pinned_and_none_while_paused(operator, agent):
    """While paused, no guest moves; afterwards, all but the pinned guests do."""
    lab = operator.lab
    names = sorted(lab.guests.report())
    for name in names[:2]:
        operator.run(f'pin {name}')
    operator.run("pause --reason 'a test'")
    agent.start(widen='false')
    agent.after(4)
    assert operator.per_node() == [4, 0]
    assert agent.show('StatusText').startswith('paused: a test; ')
    assert operator.run_json('status')['agent']['paused']['reason'] == 'a test'
    operator.run('pause --off')
    agent.until(operator.per_node, lambda per_node: per_node == [2, 2], 60 * INTERVAL_S)
    agent.until(
        lambda: operator.run('history --json').count('"mover": "agent"'), lambda count: count == 2
    )
    assert_together(lab, {name: int(name not in names[:2]) for name in names})
    operator.run(f'pin {names[0]} --node 1')
    agent.after(2)
    assert home(lab.guests.report()[names[0]]) == 1
    operator.run(f'pin --ignore {names[1]} --release')
    agent.after(2)
    assert lab.guests.report()[names[1]]['cpus'] != [CPUS[0]]
    assert agent.failures() == []
