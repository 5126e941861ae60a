# SPDX-License-Identifier: Apache-2.0
"""The agent under its own hardened unit, with real systemd, libvirt, cgroups and counters."""

import json
import time

import pytest

from machine.guests import guests_per_node, home

pytestmark = pytest.mark.full      # minutes: `make lab-full` runs them

UNIT = 'nova-numa-agent'
SHIPPED = ('"$(python3 -c \'import sysconfig; print(sysconfig.get_path("data"))\')"'
           '/share/nova-numa-pmc/systemd/nova-numa-agent.service')
INTERVAL_S = 3     # a tick alone takes a second in emulation
CPUS = {0: '0-1', 1: '2-3'}
BUSY = {'memory_mib': 16, 'cmdline': 'duty=100 touch=50'}


class Agent:
    """The service in a machine."""

    def __init__(self, lab):
        self.lab, self.run = lab, lab.run

    def start(self, **options):
        """Install the unit and start it; that returns once it has said it is ready."""
        lines = ['[counters]', f'interval_s = {INTERVAL_S}', '[agent]'] + [
            f'{name} = {value}' for name, value in options.items()]
        self.run('cat >>/etc/nova-numa-pmc/nova-numa-pmc.conf', stdin='\n'.join(lines) + '\n')
        self.run(f'cp {SHIPPED} /etc/systemd/system/ && systemctl daemon-reload && '
                 f'systemctl start {UNIT}', timeout=200)

    def stop(self):
        """Stop it and take the unit away."""
        self.run(f'systemctl stop {UNIT}; rm -f /etc/systemd/system/{UNIT}.service; '
                 'systemctl daemon-reload', timeout=200, check=False)

    def show(self, name):
        """Return one of systemd's properties of it."""
        return self.run(f'systemctl show -P {name} {UNIT}').stdout.strip()

    def journal(self):
        """Return what it has logged, a list of lines."""
        return self.run(f'journalctl -q -u {UNIT} -o cat --no-pager').stdout.splitlines()

    def published(self):
        """Return (what is published, how old it is [s])."""
        text = self.run('cat /run/nova-numa-pmc/host; date +%s.%N').stdout
        host, now_s = text.rstrip('\n').rsplit('\n', 1)
        host = json.loads(host)
        return host, float(now_s) - host['taken_s']

    def after(self, intervals=2):
        """Wait until so many whole intervals from now are published; return the last."""
        began_s = float(self.run('date +%s.%N').stdout)
        return self.until(lambda: self.published()[0], lambda host: (
            host['taken_s'] > began_s + intervals * INTERVAL_S))

    def until(self, ask, holds, seconds=120):
        """Ask until the answer holds; return it."""
        deadline = time.monotonic() + seconds
        while True:
            found = ask()
            if holds(found):
                return found
            if time.monotonic() > deadline:
                print('\n'.join(self.journal()[-20:]))
                raise AssertionError(f'not within {seconds} s: {found}')
            time.sleep(0.5)


@pytest.fixture
def agent(lab):
    """Give the hook installed and an agent that is not started yet."""
    lab.install_hook()
    made = Agent(lab)
    yield made
    print('\n'.join(made.journal()[-30:]))
    made.stop()


def on_node(node, **more):
    """Describe a busy guest that may run on one node only, and so is placed there."""
    return {**BUSY, 'vcpu': f"placement='static' cpuset='{CPUS[node]}'", **more}


def test_publishes_under_the_hardened_unit(agent):
    """Fresh as soon as it is ready; counted, not guessed; two busy guests show on their node."""
    agent.start()
    host, age_s = agent.published()
    assert age_s < 10 * INTERVAL_S and len(host['nodes']) == 2
    idle = agent.after()['nodes'][0]['demand_cores']
    agent.lab.guests.start([on_node(0, name='a'), on_node(0, name='b')])
    agent.lab.wait_for_hooks()
    host = agent.after(3)
    print(idle, host)
    near, far = host['nodes']
    assert near['guests'] == 2 and far['guests'] == 0
    assert near['promised_bytes'] == 32 << 20
    assert near['demand_cores'] > idle + 1.5 and near['demand_cores'] > far['demand_cores'] + 1
    # Without the unit's confinement, the same source: it takes nothing away.
    top = json.loads(agent.run(
        f'nova-numa-rebalance top --once --json --interval {INTERVAL_S}', timeout=200).stdout)
    assert host['source'] == top['source'] and host['source'].startswith('perf'), top['problems']
    assert '2 guests, by perf' in agent.show('StatusText')
    assert 'cap_sys_admin' not in agent.show('CapabilityBoundingSet').split()
    assert not [line for line in agent.journal() if ' fails: ' in line]


def test_comes_back_after_a_kill(agent):
    """As a new process, with the promises that were there and a fresh state."""
    agent.start()
    agent.lab.guests.start([on_node(1, name='a')])
    agent.lab.wait_for_hooks()
    promised, pid = agent.lab.promised(), agent.show('MainPID')
    agent.run(f'kill -9 {pid}')
    agent.until(lambda: (agent.show('MainPID'), agent.show('ActiveState')),
                lambda found: found[0] not in ('0', pid) and found[1] == 'active')
    agent.after(1)
    assert agent.lab.promised() == promised and promised
    assert agent.lab.running() == ['a']


def test_holds_guests_to_their_places(agent):
    """Whatever resets a cpuset: one tick later it is as promised, and one line says so."""
    agent.start()
    agent.lab.guests.start([{**BUSY, 'name': name} for name in 'ab'])
    agent.lab.wait_for_hooks()
    before = agent.lab.cpusets()
    held = {path: text for path, text in before.items()
            if path.endswith('/libvirt/cpuset.cpus') and text in CPUS.values()}
    assert sorted(held.values()) == sorted(CPUS.values()), before
    for path in held:
        agent.run(f"echo 0-3 >'{path}'")
    agent.run('systemctl daemon-reload && systemctl restart libvirtd', timeout=200)
    agent.after()
    after = agent.lab.cpusets()
    assert {path: after[path] for path in held} == held
    told = [line for line in agent.journal() if ' again: cpus ' in line]
    assert 2 <= len(told) <= 6, told
    assert agent.lab.running() == ['a', 'b']


def test_reload_and_stop(agent):
    """SIGHUP takes new options without a new process; a stop is quick and leaves no failure."""
    agent.start()
    pid = agent.show('MainPID')
    agent.run("sed -i 's/^interval_s = .*/interval_s = 12/' /etc/nova-numa-pmc/nova-numa-pmc.conf"
              f' && systemctl reload {UNIT}', timeout=100)
    agent.until(agent.journal, lambda lines: 'options read again' in lines)
    assert agent.show('MainPID') == pid
    agent.until(lambda: agent.published()[0], lambda host: host['interval_s'] > 10)
    agent.run(f'systemctl stop {UNIT}', timeout=100)
    assert (agent.show('Result'), agent.show('ActiveState')) == ('success', 'inactive')
    assert agent.run('test -d /run/nova-numa-pmc', check=False).returncode == 0


def test_moves_guests_under_the_hardened_unit(agent):
    """Four busy guests on a node of two CPUs, beside an idle node: two go there, with memory."""
    agent.lab.guests.start([{**BUSY, 'name': f'g{i}'} for i in range(8)])
    found = agent.lab.settled()
    assert guests_per_node(found, 2) == [4, 4]
    agent.lab.guests.stop([name for name, guest in found.items() if home(guest) == 1])
    agent.start(rebalance='on')
    agent.until(lambda: guests_per_node(agent.lab.guests.report(), 2),
                lambda counts: counts == [2, 2], 300)
    agent.until(agent.journal, lambda lines: sum(': move: node 0 to 1' in line
                                                 for line in lines) == 2)
    for name, guest in agent.lab.guests.report().items():
        assert guest['cpus'] == [CPUS[home(guest)]], name
