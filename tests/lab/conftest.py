# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the lab tests: one machine per shape and session, cleaned between tests."""

import contextlib
import json
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from machine import skew  # noqa: E402
from machine.agent import Agent  # noqa: E402
from machine.guests import Guests, home  # noqa: E402
from machine.shape import Shape  # noqa: E402
from machine.vm import Machine, running  # noqa: E402

# The emulated machine is slow: just starting the hook's Python takes up to a second.
HOOK_OPTIONS = {'timeout_s': 30}
NO_BALANCING = 'echo 0 >/proc/sys/kernel/numa_balancing'  # pages go where the tests bring them


class Lab:
    """A machine with its guests; ``clean`` undoes the changes that a test makes."""

    def __init__(self, machine):
        """Wrap a running machine."""
        self.machine, self.guests = machine, Guests(machine)
        self.run = machine.run
        self.run(NO_BALANCING)

    def install_hook(self, **options):
        """Install the hook as documented, with a time limit that suits emulation."""
        lines = ['[hook]'] + [f'{k} = {v}' for k, v in {**HOOK_OPTIONS, **options}.items()]
        self.run(
            'mkdir -p /etc/nova-numa-pmc && cat >/etc/nova-numa-pmc/nova-numa-pmc.conf',
            stdin='\n'.join(lines) + '\n',
        )
        self.run('nova-numa-rebalance hook install --reload')

    def skew(self, node, mib):
        """Take memory of a node that is promised to no guest, until ``unskew``."""
        skew.take(self.machine, node, mib)

    def unskew(self, node):
        """Release what ``skew`` took of a node."""
        skew.give_back(self.machine, node)

    def start_at(self, specs, homes):
        """Start guests on {name: node}, whatever the hook would choose; return a report.

        They are paused for that time: the machine is fast as long as no guest works in it.
        """
        self.guests.start([{**spec, 'paused': True} for spec in specs])
        self.wait_for_hooks()
        self.guests.force(homes)
        guests = self.guests.resume(homes)
        assert {name: home(guest) for name, guest in guests.items()} == homes, guests
        return guests

    def wait_for_hooks(self):
        """Wait until no late child process of the hook is left: it may still move pages."""
        self.guests.wait_for_hooks()

    def guests_after_hooks(self):
        """Report the guests once no hook may still move their pages; print it for a failure."""
        self.wait_for_hooks()
        guests = self.guests.report()
        print(guests)
        return guests

    def promised(self):
        """Return what the host has promised, as a list of dicts."""
        done = self.run('cat /run/nova-numa-pmc/promises 2>/dev/null || echo {}')
        promises = json.loads(done.stdout).get('promises', [])
        return sorted(promises, key=lambda promise: promise['uuid'])

    def cpusets(self):
        """Return {file: text} for every cpuset of CPUs and of nodes below the guests' slice."""
        text = self.run(
            r"find /sys/fs/cgroup -path '*machine.slice/*' \( -name cpuset.cpus -o "
            r"-name cpuset.mems \) -exec grep -H '' {} +",
            check=False,
        ).stdout
        return dict(line.split(':', 1) for line in text.splitlines())

    def running(self):
        """Return the sorted names of the guests that run according to libvirt."""
        return sorted(self.run('virsh -q list --name', timeout=100).stdout.split())

    def oom_kills(self):
        """Count the kills of the kernel's out-of-memory killer since boot."""
        return self.run('dmesg').stdout.count('oom-kill:')

    def clean(self):
        """End guests and undo what tests do to a machine."""
        self.machine.pace(0)
        if self.run('pgrep -x qemu-system-x86', check=False).returncode == 0:
            self.guests.stop()
        self.run(
            f'umount {skew.PLACE}/node*; {NO_BALANCING};'
            'if [ -d /etc/nova-numa-pmc ]; then nova-numa-rebalance hook remove;'
            ' systemctl reload libvirtd; rm -rf /run/nova-numa-pmc /etc/nova-numa-pmc'
            ' /var/lib/nova-numa-pmc; fi',
            check=False,
        )

    def journal(self):
        """Return the lines that the hook has logged."""
        return self.run('journalctl -q -t nova-numa-pmc -o cat --no-pager').stdout.splitlines()


def pytest_addoption(parser):
    """Add --full."""
    parser.addoption('--full', action='store_true', help='also run the tests marked full')


def pytest_configure(config):
    """Register the mark; make SIGTERM end machines and report results as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.addinivalue_line('markers', 'full: takes minutes, run with --full only')


def pytest_collection_modifyitems(config, items):
    """Skip the long tests unless they are requested."""
    if not config.getoption('--full'):
        left_out = [item for item in items if item.get_closest_marker('full')]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


#: This many tests may run a second time, because the machine is busy. If there are more, something
#: is wrong.
RERUNS_MAX = 2


def reruns(config):
    """Return the names of the tests that ran a second time."""
    rerun = config.pluginmanager.get_plugin('terminalreporter').stats.get('rerun', [])
    return sorted({report.nodeid for report in rerun})


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fail a run in which more tests than :data:`RERUNS_MAX` ran a second time."""
    if len(reruns(session.config)) > RERUNS_MAX and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _end_orphans():
    """End the machines of test runs that were killed."""
    for machine in running():
        name = machine.name
        if name.startswith('test-') and not pathlib.Path('/proc', name.split('-')[1]).exists():
            machine.down()


FAILED = pytest.StashKey()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Record a failed test, so that its machine is not reused; save its kernel's messages."""
    report = (yield).get_result()
    if report.failed and 'machines' in item.funcargs:
        report.sections += item.funcargs['machines'].consoles()
    # A failed test may run again: it then starts from scratch.
    before = report.when != 'setup' and item.stash.get(FAILED, False)
    item.stash[FAILED] = report.failed or before


def pytest_terminal_summary(terminalreporter):
    """Report why tests ran a second time, and whether that makes the run fail."""
    again = reruns(terminalreporter.config)
    if len(again) > RERUNS_MAX:
        terminalreporter.section(f'FAILED: {len(again)} tests ran again, {RERUNS_MAX} may')
        terminalreporter.write_line('\n'.join(again))
    for report in terminalreporter.getreports('rerun'):
        terminalreporter.section(f'why {report.nodeid} ran again')
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.section(name, sep='-')
            terminalreporter.write_line(text)


class Machines:
    """The session's machines by shape, two at a time: two cores cannot handle more."""

    def __init__(self):
        """Start without any machine."""
        self._up = {}

    def get(self, fresh=False, **options):
        """Return the Lab of a shape, thawing it if it is not up or must be fresh."""
        shape = Shape(**options)
        if fresh and shape in self._up:
            self.discard(self._up[shape])
        if shape not in self._up:
            if len(self._up) > 1:
                self.discard(next(iter(self._up.values())))
            name = f'test-{os.getpid()}-{shape.key()[:6]}'
            self._up[shape] = Lab(Machine.up(name, shape))
        return self._up[shape]

    def consoles(self):
        """Return [(title, last lines)] of the machines' consoles, with stalls and lockups."""
        consoles = []
        for lab in self._up.values():
            with contextlib.suppress(OSError):
                lines = (lab.machine.dir / 'console.log').read_text(errors='replace').splitlines()
                consoles.append((f'console of {lab.machine.name}', '\n'.join(lines[-30:])))
        return consoles

    def give_back(self, lab, clean):
        """Clean a machine for the next test; end it if that is requested or cleaning fails."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.discard, lab)
            if clean:
                lab.clean()
                ending.pop_all()

    def discard(self, lab):
        """End a machine; the next test of its shape thaws a new one."""
        del self._up[lab.machine.shape]
        lab.machine.down()

    def end(self):
        """End all machines."""
        for lab in list(self._up.values()):
            self.discard(lab)


@pytest.fixture(scope='session')
def machines():
    """Provide the session's machines."""
    _end_orphans()
    pool = Machines()
    yield pool
    pool.end()


@pytest.fixture
def lab_of(machines, request):
    """Provide a clean Lab of any shape: ``lab_of(nodes=4, memory_mib=(1024,) * 4)``."""
    used = []

    def get(**options):
        used.append(machines.get(**options))
        return used[-1]

    yield get
    for lab in used:
        machines.give_back(lab, clean=not request.node.stash.get(FAILED, False))


@pytest.fixture
def lab(lab_of):
    """Provide the default machine: two nodes of two CPUs and 2 GiB, cgroup v2."""
    return lab_of()


@pytest.fixture
def agent(lab):
    """Provide the default machine with the hook installed and an agent that is not started yet."""
    lab.install_hook()
    lab_agent = Agent(lab)
    yield lab_agent
    print('\n'.join(lab_agent.journal()[-30:]))
    lab_agent.stop()
