# SPDX-License-Identifier: Apache-2.0
"""Start, stop, load and disturb guests at random on an emulated host with the agent.

After each step, the guests that must run do; every few steps, each is checked to be where it was
promised, and no other guest has a promise. At the end, nothing is left of the guests, and the
agent's memory has not grown. Each action is done once; ``make soak`` then goes on for two hours.
"""

import collections
import os
import random
import re
import time

import pytest
from machine.agent import STAGE_FAILED, UNIT, Agent
from machine.vm import MachineError

MINUTES = float(os.environ.get('SOAK_MINUTES', '0'))
SEED = int(os.environ.get('SOAK_SEED', '11'))

GUESTS_MAX, STEPS_BETWEEN_CHECKS = 8, 5
#: The maximum demand of all guests together [% of a CPU]. An emulated CPU waits in each TLB
#: shootdown until the real ones have run all others: with more of them busy than there are real
#: ones, 32 MiB take minutes to migrate, and a process that writes to a cgroup in the meantime
#: waits for that.
LOAD_MAX_PERCENT = 100
#: Maximum growth of the agent's memory over a run, within one process [KiB].
GROWTH_MAX_KIB = 4096
NODE_CPUS = {0: {0, 1}, 1: {2, 3}}
MOVED = re.compile(r'guest (?P<name>\S+): (?P<kind>[a-z]+): from ')


class Soak:
    """A run of random actions on a host.

    :param lab: ``conftest.Lab`` with the hook installed
    """

    def __init__(self, lab, seed):
        self.lab, self.run, self.agent = lab, lab.run, Agent(lab)
        self.rng, self.expected, self.started = random.Random(seed), {}, 0
        self.counts, self.rss_kib = collections.Counter(), collections.defaultdict(list)
        self.filled, self.timed_out = None, 0
        self.actions = {
            self.start: 30,
            self.stop: 18,
            self.limit_cpu_time: 14,
            self.pause: 6,
            self.fill_node: 6,
            self.reset_cpuset: 8,
            self.kill_agent: 4,
            self.reload: 4,
            self.restart_libvirtd: 3,
        }

    def step(self, action=None):
        """Do one action, and check that it ended no guest.

        :param action: one of ``actions``, or None for any
        """
        if action is None:
            (action,) = self.rng.choices(list(self.actions), list(self.actions.values()))
        outcome = action()
        if outcome is None:
            return
        self.counts[action.__name__] += 1
        print(f'{action.__name__}: {outcome}')
        self.check_running()
        if sum(self.counts.values()) % STEPS_BETWEEN_CHECKS == 0:
            self.check_places()

    def start(self):
        """Start one to three guests in parallel."""
        room = GUESTS_MAX - len(self.expected)
        if room < 1:
            return None
        specs, load = [], sum(spec['load'] for spec in self.expected.values())
        for _ in range(self.rng.randint(1, min(3, room))):
            vcpus = self.rng.choice((1, 1, 2))
            duty = self.rng.choice(
                [d for d in (5, 10, 20, 40, 60) if d == 5 or load + d * vcpus <= LOAD_MAX_PERCENT]
            )
            load += duty * vcpus
            self.started += 1
            specs.append(
                {
                    'name': f's{self.started}',
                    'memory_mib': self.rng.choice((16, 32, 64)),
                    'vcpus': vcpus,
                    'load': duty * vcpus,
                    'cmdline': f'duty={duty} touch=60',
                }
            )
        started = self.lab.guests.start(specs, parallel=3, check=False)
        for spec in specs:
            why = started[spec['name']]['message']
            if not started[spec['name']]['code']:
                self.expected[spec['name']] = spec
            elif 'imeout' in why or 'timed out' in why:  # libvirt's call of systemd
                self.timed_out += 1
                print(f'{spec["name"]}: {why}')
            else:
                raise MachineError(f'{spec["name"]} did not start: {why}')
        return ', '.join(f'{s["name"]} {s["vcpus"]} x {s["cmdline"]}' for s in specs)

    def stop(self):
        """End one or two guests."""
        names = self._choose_guests(2)
        if not names:
            return None
        self.lab.guests.stop(names)
        for name in names:
            del self.expected[name]
        return ', '.join(names)

    def limit_cpu_time(self):
        """Change a guest's load by limiting its CPU time."""
        names = self._choose_guests(1)
        if not names:
            return None
        quota = self.rng.choice((-1, 20000, 50000))
        self.run(f'virsh -q schedinfo {names[0]} --live --set vcpu_quota={quota}', timeout=200)
        return f'{names[0]} to {quota}'

    def pause(self):
        """Suspend a guest and resume it."""
        names = self._choose_guests(1)
        if not names:
            return None
        self.run(
            f'virsh -q suspend {names[0]} && sleep {self.rng.uniform(0, 5):.1f}; '
            f'virsh -q resume {names[0]}',
            timeout=200,
        )
        return names[0]

    def fill_node(self):
        """Take most of the free memory of a node, or release it."""
        if self.filled is not None:
            self.lab.unskew(self.filled)
            self.filled = None
            return 'given back'
        self.filled = self.rng.randint(0, 1)
        self.lab.skew(self.filled, mib=900)
        return f'node {self.filled} taken'

    def reset_cpuset(self):
        """Give a vCPU's group all CPUs, as a reload of systemd may do."""
        paths = [
            path for path in self.lab.cpusets() if path.endswith('/libvirt/vcpu0/cpuset.cpus')
        ]
        if not paths:
            return None
        path = self.rng.choice(sorted(paths))
        self.run(f"echo 0-3 >'{path}'", check=False)  # the guest may be ending
        return path.rsplit('/', 4)[-4]

    def kill_agent(self):
        """Kill the agent; systemd starts it again."""
        self.run(f'systemctl kill -s KILL {UNIT}')
        return 'SIGKILL'

    def reload(self):
        """Make systemd read its units again, and restart the agent, which reads its options."""
        self.run(f'systemctl daemon-reload; systemctl try-restart {UNIT}', timeout=200)
        return 'systemd and agent'

    def restart_libvirtd(self):
        """Restart libvirt's daemon; guests continue."""
        self.run('systemctl restart libvirtd && virsh -q list >/dev/null', timeout=300)
        return 'done'

    def _choose_guests(self, most):
        names = sorted(self.expected)
        return self.rng.sample(names, min(len(names), self.rng.randint(1, most)))

    def check_running(self):
        """Check that the guests that should run do, and that none was killed for memory."""
        assert self.lab.running() == sorted(self.expected)
        assert self.lab.oom_kills() == 0

    def check_places(self):
        """Check two intervals later that each guest is as promised and each promised one runs."""
        self.lab.wait_for_hooks()
        self.agent.until(lambda: self.agent.show('ActiveState'), lambda state: state == 'active')
        self.agent.after(2)
        self.agent.until(self._misplaced, lambda misplaced: misplaced == [], 60)
        pid, rss = self.run(
            f'pid=$(systemctl show -P MainPID {UNIT}); echo $pid; '
            "awk '/VmRSS/ {print $2}' /proc/$pid/status"
        ).stdout.split()
        self.rss_kib[pid].append(int(rss))

    def _misplaced(self):
        promised = {promise['name']: promise for promise in self.lab.promised()}
        wide = self._widened()
        wrong = [f'{name}: promised and gone' for name in promised.keys() - self.expected.keys()]
        for name, guest in self.lab.guests.report().items():
            nodes = promised[name]['cpu_nodes'] if name in promised else None
            if nodes is None:
                wrong.append(f'{name}: not promised')
                continue
            allowed = set().union(*(NODE_CPUS[node] for node in nodes or NODE_CPUS))
            fits = set.__le__ if name in wide else set.__eq__
            if not all(fits(allowed, _cpus(text)) for text in guest['cpus']):
                wrong.append(f'{name}: promised {nodes}, on {guest["cpus"]}')
        return wrong

    def _widened(self):
        """Return the names of guests whose last move was to more nodes than were promised."""
        last = {}
        for line in self.agent.journal():
            match = MOVED.match(line)
            if match:
                last[match['name']] = match['kind']
        return {name for name, kind in last.items() if kind == 'widen'}

    def end(self):
        """End all guests, check that nothing is left, and return the figures of the run."""
        self.check_places()
        self.lab.guests.stop()
        self.expected.clear()
        self.agent.after(2)
        self.check_running()
        assert self.lab.promised() == []
        groups = self.run('ls -d /sys/fs/cgroup/machine.slice/machine-qemu* 2>/dev/null | wc -l')
        assert groups.stdout.strip() == '0'
        lines = self.agent.journal()
        for rss_kib in self.rss_kib.values():
            assert max(rss_kib) - rss_kib[min(2, len(rss_kib) - 1)] < GROWTH_MAX_KIB, self.rss_kib
        assert not [line for line in lines if 'Traceback' in line or STAGE_FAILED.match(line)]
        kinds = [match['kind'] for match in map(MOVED.match, lines) if match]
        moves = kinds.count('move')
        return {
            'steps': dict(self.counts),
            'guests_started': self.started - self.timed_out,
            'starts_timed_out': self.timed_out,
            'moves': moves,
            'held_again': sum(' again: CPUs ' in line for line in lines),
            'not_moved': sum(
                line.startswith(('not moved: ', 'undone: ', 'not fully undone: '))
                for line in lines
            ),
            'agent_rss_kib': {
                pid: [rss_kib[0], max(rss_kib), rss_kib[-1]]
                for pid, rss_kib in self.rss_kib.items()
            },
            'warnings': sorted({line for line in lines if ' WARNING ' in line})[:20],
        }


def _cpus(text):
    cpus = set()
    for part in text.split(','):
        first, _, last = part.partition('-')
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


@pytest.mark.full
@pytest.mark.timeout(900 + 120 * MINUTES)
def test_no_guest_is_lost_in_random_starts_loads_and_faults(lab):
    """No guest is lost, no promise leaks, and every guest is where it was promised."""
    lab.install_hook()
    began, soak = time.monotonic(), Soak(lab, SEED)
    soak.agent.start(rebalance='auto')
    try:
        soak.step(soak.start)
        for action in soak.rng.sample(list(soak.actions), len(soak.actions)):
            soak.step(action)
        while time.monotonic() - began < 60 * MINUTES:
            soak.step()
        print(soak.end())
    finally:
        print('\n'.join(soak.agent.journal()[-60:]))
        soak.agent.stop()
