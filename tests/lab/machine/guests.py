# SPDX-License-Identifier: Apache-2.0
"""Start and end walker guests in a machine, locate them, and count their accesses."""

import contextlib
import json
import time

from machine.image import LAB
from machine.vm import LAB_DIR, MachineError

HOOK_PROCESS = 'nova_numa_pmc[.]hook import'  # does not match the shell that looks for it
#: The fraction of a small guest's bytes that is at home when it has started: QEMU's first pages
#: come before its CPUs are narrowed (a tenth of a second in emulation), and only the agent fetches
#: them.
STARTED_AT_HOME = 0.95
FREEZER = '/sys/fs/cgroup/machine.slice/cgroup.freeze'


class Guests:
    """The guests of one machine; every answer comes from inside/labguests.py."""

    def __init__(self, machine):
        """Install the helper in the machine."""
        self.machine = machine
        machine.push([LAB / 'inside/labguests.py'], LAB_DIR)

    def _ask(self, timeout=300, **request):
        done = self.machine.run(
            f'python3 {LAB_DIR}/labguests.py', timeout=timeout, stdin=json.dumps(request)
        )
        return json.loads(done.stdout)

    def start(self, specs, parallel=6, check=True):
        """Start guests in parallel; return {name: {code, message, seconds}}.

        A spec is a dict with `name` and, optionally, memory_mib, vcpus, cmdline, vcpu (the
        element's attributes), tune, cputune, metadata, more (XML), uuid, paused.
        """
        started = self._ask(do='start', guests=specs, parallel=parallel)
        failed = {n: r['message'] for n, r in started.items() if r['code']}
        if check and failed:
            raise MachineError(f'guests did not start: {failed}')
        return started

    def report(self):
        """Return {name: {pid, bytes {node: n}, cpus, mems, passes}} according to the kernel."""
        return _by_number(self._ask(do='report'))

    def move_memory(self, homes):
        """Move guests' memory to {name: node} without binding it; return a report."""
        return _by_number(self._ask(do='move_memory', homes=homes))

    def force(self, homes, python='python3'):
        """Hold guests to {name: node} with CPUs, promise and memory; return a report.

        :param python: the machine's Python that has the package
        """
        self.machine.push([LAB / 'inside/labforce.py'], LAB_DIR)
        self.machine.run(
            f'{python} {LAB_DIR}/labforce.py', timeout=300, stdin=json.dumps({'homes': homes})
        )
        return self.move_memory(homes)  # including QEMU's own memory

    @contextlib.contextmanager
    def frozen(self):
        """Freeze the guests for that time (v2): without working guests, the machine is fast."""
        self.machine.run(f'echo 1 >{FREEZER}')
        try:
            yield
        finally:
            self.machine.run(f'echo 0 >{FREEZER}', check=False)

    def wait_for_hooks(self):
        """Wait until no late child process of the hook is left: it may still move pages."""
        self.machine.run(
            f"for i in $(seq 360); do pgrep -f '{HOOK_PROCESS}' >/dev/null || exit 0; "
            'sleep 0.5; done; echo the hook still works after 180 s; exit 1'
        )

    def resume(self, names):
        """Resume paused guests and wait until each has walked its memory; return a report."""
        self.machine.run('; '.join(f'virsh -q resume {name}' for name in names), timeout=300)
        deadline = time.monotonic() + 300
        while True:
            guests = self.report()
            if all(guests[name]['passes'] for name in names):
                return guests
            if time.monotonic() > deadline:
                raise MachineError(f'guests do not run: {guests}')
            time.sleep(1)

    def count_accesses(self, seconds):
        """Count accesses by perf; return {seconds, guests: {name: {local, remote, passes}}}."""
        return self._ask(do='count_accesses', seconds=seconds)

    def stop(self, names=None):
        """End the named guests, or all."""
        return self._ask(do='stop', guests=names)


def _by_number(guests):
    for guest in guests.values():
        guest['bytes'] = {int(n): b for n, b in guest['bytes'].items()}
    return guests


def home(guest):
    """Return the node with most of a reported guest's bytes."""
    return max(guest['bytes'], key=lambda n: (guest['bytes'][n], -n))


def home_share(guest, node=None):
    """Return the share of a reported guest's bytes on a node (default: its home)."""
    node = home(guest) if node is None else node
    return guest['bytes'].get(node, 0) / max(1, sum(guest['bytes'].values()))


def guests_per_node(report, nodes):
    """Count guests by the node that holds most of their bytes."""
    counts = [0] * nodes
    for guest in report.values():
        counts[home(guest)] += 1
    return counts
