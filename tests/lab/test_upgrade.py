# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade the package on a working host; guests must not be affected.

The two versions differ in the name of a module, so that a process of one does not find its late
import once the other is installed.
"""

import concurrent.futures
import contextlib
import json
import re
import shutil

import pytest
from machine import image
from machine.agent import STAGE_FAILED, UNIT, Agent
from machine.guests import HOOK_PROCESS, home, home_share
from machine.vm import LAB_DIR

pytestmark = pytest.mark.full  # takes minutes: `make lab-full` runs them

FORMER, PRESENT = 'former', 'present'
#: The module that the hook imports last, when a guest has started.
LATE = 'started'
CPUS = {0: '0-1', 1: '2-3'}
SPEC = {'memory_mib': 32, 'cmdline': 'duty=5'}
HOOK = '/etc/libvirt/hooks/qemu.d/50-nova-numa-pmc'
LOCK = '/run/nova-numa-pmc/lock'
#: What a package manager removes: the files that it installed, and no directories.
REMOVE = (
    "cd / && python3 -c 'import importlib.metadata as metadata\n"
    'for file in metadata.files("nova-numa-pmc"): file.locate().unlink(missing_ok=True)\''
)


def former_wheel(directory):
    """Return the wheel of a version like this one, but for the name of a module.

    The files of both versions have one format, as those of releases with one major version do.
    """
    tree = directory / 'tree'
    shutil.copytree(
        image.CHECKOUT, tree, ignore=shutil.ignore_patterns('.*', '__pycache__', 'tests', 'doc')
    )
    package = tree / 'nova_numa_pmc/hook'
    (package / f'{LATE}.py').rename(package / f'{LATE}_{FORMER}.py')
    text = (package / '__init__.py').read_text(encoding='utf-8')
    text, count = re.subn(
        rf'\bhook import {LATE}\b', f'hook import {LATE}_{FORMER} as {LATE}', text
    )
    assert count, text
    (package / '__init__.py').write_text(text, encoding='utf-8')
    return image.wheel(tree)


class Host:
    """A host whose package is replaced.

    :param lab: the machine's ``conftest.Lab``
    """

    def __init__(self, lab):
        self.lab, self.run, self.agent = lab, lab.run, None

    def unpack(self, version, wheel):
        """Unpack a version next to the installed one, compiled."""
        place = f'{LAB_DIR}/{version}'
        self.run(f'mkdir -p {place}')
        self.lab.machine.push([wheel], place)
        self.run(f'python3 -m installer --destdir {place}/root {place}/{wheel.name}')

    def install(self, version):
        """Copy an unpacked version to where none is installed."""
        self.run(f'cp -a {LAB_DIR}/{version}/root/. /')

    def wait_until(self, condition, seconds=60):
        """Wait until a shell condition holds."""
        self.run(
            f'for i in $(seq {seconds * 5}); do if {condition}; then exit 0; fi; sleep 0.2; done; '
            'exit 1',
            timeout=seconds * 3,
        )

    @contextlib.contextmanager
    def locked(self):
        """Hold the lock of the promises, so that starts wait for it."""
        self.run(
            f'systemd-run -q --unit=lab-lock flock {LOCK} sleep 600; '
            f'while flock -n {LOCK} true; do sleep 0.1; done'
        )
        try:
            yield
        finally:
            self.run('systemctl stop lab-lock')

    def replace(self, version, starting, without, placed):
        """Replace the package during that time.

        :param starting: guest whose ``start`` calls the old version and ``started`` the new one
        :param without: guest that starts while no package is installed
        :param placed: guest for which the old version is called, whose late imports are gone
        :returns: the lines that the hook has logged
        """
        before = len(self.lab.journal())
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with self.locked():
                started = pool.submit(self.lab.guests.start, [{**SPEC, 'name': starting}])
                self.wait_until(
                    f"for p in $(pgrep -f '{HOOK_PROCESS}.* {starting} start'); "
                    f'do readlink /proc/$p/fd/*; done | grep -qx {LOCK}'
                )
                self.run(
                    f'rm -f /run/late /run/late.now; virsh dumpxml {placed} >/run/late.xml; '
                    "systemd-run -q --unit=lab-late sh -c '"
                    '(until [ -e /run/late.now ]; do sleep 0.2; done; cat /run/late.xml) | '
                    f"{HOOK} {placed} started begin -; echo $? >/run/late'"
                )
                self.wait_until(
                    f"for p in $(pgrep -f '{HOOK_PROCESS}.* {placed} started'); "
                    'do cat /proc/$p/wchan; done | grep -q pipe_read'
                )
                self.run(REMOVE)
                self.lab.guests.start([{**SPEC, 'name': without, 'paused': True}])
                self.install(version)
            self.run('touch /run/late.now')
            started.result()
        self.wait_until('[ -s /run/late ]')
        assert self.run('cat /run/late').stdout.strip() == '0'
        self.lab.wait_for_hooks()
        lines = self.lab.journal()[before:]
        print(f'{version}, the hook:', *lines, sep='\n')
        return lines

    def restart(self):
        """Install the hook's script again and restart, as documented for an upgrade."""
        self.run('nova-numa-rebalance hook install', timeout=200)
        self.run(f'systemctl restart libvirtd && systemctl restart {UNIT}', timeout=200)
        for name in self.lab.running():
            self.run(f'virsh dommemstat {name}', timeout=100)

    def places(self, replaced=False):
        """Return {guest: its place} once the hook is found valid and the promises are read.

        :param replaced: whether the hook's script may still be that of the other version
        """
        done = self.run('nova-numa-rebalance hook status --json', check=False)
        status = json.loads(done.stdout)
        problems = {problem['code'] for problem in status['problems']}
        assert problems <= ({'hook-outdated'} if replaced else set()), status['problems']
        assert done.returncode == 0 or problems, done
        assert status['installed']['current'] == (not problems), status
        assert status['trial']['ok'], status
        promised = {one['name']: one for one in status['decisions']}
        guests = self.lab.guests.report()
        assert sorted(guests) == sorted(promised) == self.lab.running()
        print({name: (guest['bytes'], guest['cpus']) for name, guest in guests.items()})
        cpusets = self.lab.cpusets()
        # For a guest that is not placed: the node of its memory.
        homes = {
            name: next(iter(promised[name]['cpu_nodes']), home(guest))
            for name, guest in guests.items()
        }
        return {
            name: {
                'pid': guest['pid'],
                'cpus': guest['cpus'],
                'mems': guest['mems'],
                'home': homes[name],
                'at_home': home_share(guest, homes[name]),
                'promise': {
                    what: promised[name][what]
                    for what in ('uuid', 'origin', 'cpu_nodes', 'mem_nodes', 'memory_bytes')
                },
                # Depending on which of its groups has changed between the versions.
                'held': any(
                    text == CPUS[homes[name]]
                    for path, text in cpusets.items()
                    if f'x2d{name}.scope/' in path and path.endswith('cpuset.cpus')
                ),
            }
            for name, guest in guests.items()
        }

    def assert_unchanged(self, before, step, replaced=False):
        """Assert that placed guests kept promise, cpusets and memory, and no guest was moved."""
        after = self.places(replaced)
        for name, place in before.items():
            assert place['cpus'] == [CPUS[place['home']]], (step, name, place)
            assert place['promise']['cpu_nodes'] == [place['home']], (step, name, place)
            assert place['held'], (step, name, place)
            now = after[name]
            assert now['at_home'] >= place['at_home'] - 0.02, (step, name, now, place)
            assert {**now, 'at_home': place['at_home']} == place, (step, name)
        history = self.run('nova-numa-rebalance history --json')
        assert not history.stderr, history.stderr
        moved = [
            part
            for line in history.stdout.splitlines()
            for part in json.loads(line)['parts']
            if part['before'] != part['after']  # not what was fetched home
        ]
        assert not moved, (step, moved)
        return after

    def messages_since(self, line):
        """Return what the agent has logged since that line, two intervals later."""
        self.agent.after(2)
        lines = self.agent.journal()[line:]
        print('the agent:', *lines, sep='\n')
        return lines


@pytest.fixture
def host(lab, tmp_path):
    """Provide a host with the former version, its hook and its agent, and three running guests."""
    wheels = {FORMER: former_wheel(tmp_path), PRESENT: image.wheel()}
    new_host = Host(lab)
    for version, wheel in wheels.items():
        new_host.unpack(version, wheel)
    lab.run(REMOVE)
    new_host.install(FORMER)
    # A start waits for the lock for three quarters of that: longer than a replacement takes.
    lab.install_hook(timeout_s=60)
    new_host.agent = Agent(lab)
    new_host.agent.start()
    lab.guests.start([{**SPEC, 'name': name} for name in 'abc'])
    lab.wait_for_hooks()
    new_host.agent.after(2)
    yield new_host
    new_host.agent.stop()
    lab.run(REMOVE)
    new_host.install(PRESENT)


def test_guests_stay_as_they_are_in_an_upgrade_and_a_downgrade(host):
    """Promises, places and memory survive both ways while guests start and processes are old."""
    before, agent = host.places(), host.agent
    assert {place['home'] for place in before.values()} == {0, 1}
    assert all(place['at_home'] > 0.9 for place in before.values()), before
    for version, starting, without, placed in (
        (PRESENT, 'up', 'gap', 'a'),
        (FORMER, 'down', 'hole', 'b'),
    ):
        pid, line = agent.show('MainPID'), len(agent.journal())
        messages = host.replace(version, starting, without, placed)
        # Failures in the hook are reported, and never make a guest's start fail.
        assert [s for s in messages if f'guest {without}: hook start ended with' in s], messages
        assert [s for s in messages if f'guest {placed}: started: ImportError' in s], messages
        host.messages_since(line)
        # The agent of the old version continues.
        assert (agent.show('MainPID'), agent.show('ActiveState')) == (pid, 'active')
        after = host.assert_unchanged(before, f'{version} put in place', replaced=True)
        assert without in after
        # Placed like all others; what it touches while it boots may be elsewhere.
        before[starting] = {**after[starting], 'at_home': 0.0}
        line = len(agent.journal())
        host.restart()
        lines = host.messages_since(line)
        assert not list(filter(STAGE_FAILED.match, lines)), lines
        host.assert_unchanged(before, f'{version} restarted')
