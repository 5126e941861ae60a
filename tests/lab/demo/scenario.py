# SPDX-License-Identifier: Apache-2.0
"""Start the same guests in each way on a freshly thawed machine, and record the result.

Each arrangement has a machine of its own, thawed from the same frozen state: that takes about as
long as ending guests, and nothing is left of the previous arrangement.
"""

import contextlib
import dataclasses
import datetime
import shutil
import signal
import time
from typing import Any

from conftest import Lab
from machine import image, vm
from machine.agent import Agent
from machine.shape import Shape

NUMAD = {
    'vcpu': "placement='auto'",
    'tune': "<numatune><memory mode='strict' placement='auto'/></numatune>",
}
FACTS = ('kernel', 'qemu', 'libvirt', 'numad', 'cpu', 'cgroup_fs')
READ_FACTS = """uname -r; qemu-system-x86_64 --version | head -n 1; libvirtd --version
dpkg-query -W -f '${Version}\\n' numad; grep -m 1 'model name' /proc/cpuinfo | cut -d : -f 2
stat -fc %T /sys/fs/cgroup"""


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """A way to start the guests.

    :param spec: what their domains' XML has in addition to the defaults
    :param balancing: whether the kernel's automatic NUMA balancing is on
    :param hook: options of our hook, or None for no hook
    """

    title: str
    spec: dict = dataclasses.field(default_factory=dict)
    balancing: bool = False
    hook: dict | None = None


ARRANGEMENTS = {
    'floating': Arrangement('floating'),
    'balanced': Arrangement('floating, NUMA balancing', balancing=True),
    'numad': Arrangement("placement='auto' (numad)", spec=NUMAD),
    'placed': Arrangement('our hook and agent', hook={}),
    'bound': Arrangement('the same, memory bound', hook={'bind': 'true'}),
}
DEFAULT = ('floating', 'balanced', 'numad', 'placed')


SHAPE = Shape()
#: What all arrangements have in common.
#:
#: skew_mib: taken on node 0 before the guests start; balance_s: how long the kernel's balancing
#: works before the first window; guests start all at once.
SETTINGS: dict[str, Any] = {
    'guests': 6,
    'memory_mib': 300,
    'cmdline': 'duty=10 touch=12',
    'skew_mib': 500,
    'windows': 2,
    'window_s': 10,
    'balance_s': 20,
}


class Steps:
    """The steps: each is announced as it starts, and the duration of each phase is kept."""

    def __init__(self, print_progress):
        """Store the function that shows a line."""
        self._print_progress, self.began, self.phases_s = print_progress, time.monotonic(), {}

    @contextlib.contextmanager
    def step(self, phase, text):
        """Announce a step; add its time to its phase."""
        began = time.monotonic()
        self._print_progress(f'[{began - self.began:4.0f} s] {text}')
        try:
            with image.progress(text):
                yield
        finally:
            self.phases_s[phase] = self.phases_s.get(phase, 0.0) + time.monotonic() - began


def end_on_sigterm():
    """Make SIGTERM interrupt as Ctrl-C does, so that the machine is stopped."""

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextlib.contextmanager
def machine_up(name, shape):
    """Run a machine and stop it whatever happens. Its logs are kept only after a failure."""
    machine = vm.Machine.up(name, shape)
    try:
        yield machine
    finally:
        machine.down()
    shutil.rmtree(machine.dir, ignore_errors=True)


def build(steps):
    """Build what the machines of all arrangements are made from."""
    with steps.step('build', 'building image, tools, wheel and a booted machine, if not cached'):
        vm.build(SHAPE)


def run(name, arrangement, steps):
    """Start the guests in one way; return the observations for ``report.summarize``.

    :param name: of the machine
    """

    def step(phase, text):
        return steps.step(phase, f'{arrangement.title}: {text}')

    with contextlib.ExitStack() as stack:
        with step('thaw', 'thawing the machine'):
            lab = Lab(stack.enter_context(machine_up(name, SHAPE)))
        with step('prepare', f'taking {SETTINGS["skew_mib"]} MiB on node 0'):
            _prepare(lab, arrangement)
            facts = dict(zip(FACTS, map(str.strip, lab.run(READ_FACTS).stdout.splitlines())))
        with step('start', f'starting {SETTINGS["guests"]} guests'):
            started = lab.guests.start(
                [
                    {
                        'name': f'guest{i}',
                        'memory_mib': SETTINGS['memory_mib'],
                        'cmdline': SETTINGS['cmdline'],
                        **arrangement.spec,
                    }
                    for i in range(1, SETTINGS['guests'] + 1)
                ],
                parallel=SETTINGS['guests'],
            )
        if arrangement.balancing:
            with step('settle', "letting the kernel's balancing work"):
                time.sleep(SETTINGS['balance_s'])
        if arrangement.hook is not None:
            with step('settle', 'letting the agent fetch what QEMU had elsewhere'):
                lab.wait_for_hooks()
                _fetch(lab)
        windows = []
        for i in range(SETTINGS['windows']):
            with step('count', f'counting, {i + 1} of {SETTINGS["windows"]}'):
                windows.append(lab.guests.count_accesses(SETTINGS['window_s']))
        with step('report', "reading the guests' bytes per node"):
            guests_after = lab.guests.report()
            hook_log = lab.journal() if arrangement.hook is not None else []
    return {
        'title': arrangement.title,
        'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'facts': facts,
        'start_s': {n: r['seconds'] for n, r in started.items()},
        'hook_log': hook_log,
        'windows': windows,
        'guests': guests_after,
    }


def _prepare(lab, arrangement):
    """Set up balancing, skew and hook."""
    lab.run('virsh -q list')  # a libvirtd that its socket starts has ended after two idle minutes
    if arrangement.hook is not None:
        lab.install_hook(**arrangement.hook)
    lab.skew(0, SETTINGS['skew_mib'])
    lab.run(f'sysctl -q kernel.numa_balancing={int(arrangement.balancing)}')


def _fetch(lab):
    """Let the agent work for some ticks, but not during counting, because counters are few."""
    agent = Agent(lab)
    try:
        agent.start(rebalance='off')
        agent.after(3)
    finally:
        agent.stop()
