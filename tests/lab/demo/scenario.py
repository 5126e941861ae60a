# SPDX-License-Identifier: Apache-2.0
"""Start the same guests in each way on a freshly thawed machine, and record the result.

Each arrangement has a machine of its own, thawed from the same frozen state: that takes about as
long as ending guests, and nothing is left of the previous arrangement.
"""

import contextlib
import dataclasses
import datetime
import os
import platform
import shutil
import signal
import subprocess
import time

from conftest import Lab
from machine import image, vm
from machine.agent import Agent
from machine.shape import Shape

CMDLINE = 'duty=10 touch=12'
NUMAD = {
    'vcpu': "placement='auto'",
    'tune': "<numatune><memory mode='strict' placement='auto'/></numatune>",
}
FACTS = """uname -r; qemu-system-x86_64 --version | head -n 1; libvirtd --version
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


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings that all arrangements have in common.

    :param skew_mib: taken on node 0 before the guests start
    :param balance_s: how long the kernel's balancing works before the first window
    :param parallel: guests that start at the same time
    """

    guests: int = 6
    memory_mib: int = 300
    skew_mib: int = 500
    windows: int = 2
    window_s: int = 10
    balance_s: int = 20
    parallel: int = 6
    shape: Shape = Shape()


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


def build(plan, steps):
    """Build what the machines of all arrangements are made from."""
    with steps.step('build', 'building image, tools, wheel and a booted machine, if not cached'):
        vm.build(plan.shape)


def run(name, arrangement, plan, steps):
    """Start the guests in one way; return the observations for ``report.summarize``.

    :param name: of the machine
    """
    before_s = dict(steps.phases_s)

    def step(phase, text):
        return steps.step(phase, f'{arrangement.title}: {text}')

    with contextlib.ExitStack() as stack:
        with step('thaw', 'thawing the machine'):
            lab = Lab(stack.enter_context(machine_up(name, plan.shape)))
        with step(
            'prepare',
            f'taking {plan.skew_mib} MiB on node 0'
            + ('' if arrangement.hook is None else ', installing the hook'),
        ):
            free = _prepare(lab, arrangement, plan.skew_mib)
            facts = _machine_facts(lab)
        with step('start', f'starting {plan.guests} guests, {plan.parallel} at a time'):
            started = lab.guests.start(
                [
                    {
                        'name': f'guest{i}',
                        'memory_mib': plan.memory_mib,
                        'cmdline': CMDLINE,
                        **arrangement.spec,
                    }
                    for i in range(1, plan.guests + 1)
                ],
                parallel=plan.parallel,
            )
        if arrangement.balancing:
            with step('settle', f"letting the kernel's balancing work for {plan.balance_s} s"):
                time.sleep(plan.balance_s)
        if arrangement.hook is not None:
            with step('settle', 'letting the agent fetch what QEMU had elsewhere'):
                lab.wait_for_hooks()
                _fetch(lab)
        windows = []
        for i in range(plan.windows):
            with step('count', f'counting for {plan.window_s} s, {i + 1} of {plan.windows}'):
                windows.append(lab.guests.count_accesses(plan.window_s))
        with step('report', "reading the guests' bytes per node"):
            guests_after = lab.guests.report()
            hook_log = lab.journal() if arrangement.hook is not None else []
    return {
        'title': arrangement.title,
        'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'facts': facts,
        'numa_balancing': arrangement.balancing,
        'free_mib_before': free,
        'start_s': {n: r['seconds'] for n, r in started.items()},
        'phases_s': {
            phase: seconds - before_s.get(phase, 0.0) for phase, seconds in steps.phases_s.items()
        },
        'hook_log': hook_log,
        'windows': windows,
        'guests': guests_after,
    }


def _prepare(lab, arrangement, skew_mib):
    """Set up balancing, skew and hook; return the free memory of each node [MiB]."""
    lab.run('virsh -q list')  # a libvirtd that its socket starts has ended after two idle minutes
    if arrangement.hook is not None:
        lab.install_hook(**arrangement.hook)
    if skew_mib:
        lab.skew(0, skew_mib)
    done = lab.run(
        f'sysctl -q kernel.numa_balancing={int(arrangement.balancing)} && '
        'grep -h MemFree /sys/devices/system/node/node*/meminfo'
    )
    return [int(line.split()[-2]) >> 10 for line in done.stdout.splitlines()]


def _fetch(lab):
    """Let the agent work for some ticks, but not during counting, because counters are few."""
    agent = Agent(lab)
    try:
        agent.start(rebalance='off')
        agent.after(3)
    finally:
        agent.stop()


def _machine_facts(lab):
    lines = lab.run(FACTS).stdout.splitlines()
    keys = ('kernel', 'qemu', 'libvirt', 'numad', 'cpu', 'cgroup_fs')
    return dict(zip(keys, map(str.strip, lines)))


def host_facts():
    """Return facts about the host that the demo runs on."""
    version = subprocess.run([vm.QEMU, '--version'], capture_output=True, text=True, check=True)
    cpu = 'unknown'
    with contextlib.suppress(OSError), open('/proc/cpuinfo') as lines:
        cpu = next(
            (line.partition(':')[2].strip() for line in lines if line.startswith('model name')),
            cpu,
        )
    return {
        'kernel': platform.release(),
        'cpu': cpu,
        'cpus': len(os.sched_getaffinity(0)),
        'load_average': os.getloadavg()[0],
        'qemu': version.stdout.splitlines()[0],
    }
