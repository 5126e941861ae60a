# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the lab tests: one machine per shape and session, cleaned between tests."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from machine.guests import Guests  # noqa: E402
from machine.shape import Shape  # noqa: E402
from machine.vm import Machine  # noqa: E402

# The emulated machine is slow: a start of the hook's Python alone takes up to a second.
HOOK_CONF = '[hook]\ntimeout_s = 30\n'


class Lab:
    """A machine with its guests; what a test changes is put back by ``clean``."""

    def __init__(self, machine):
        """Wrap a running machine."""
        self.machine, self.guests = machine, Guests(machine)
        self.run = machine.run

    def install_hook(self):
        """Install the hook as the documents say, with a time limit that fits emulation."""
        self.run('mkdir -p /etc/nova-numa-pmc && cat >/etc/nova-numa-pmc/nova-numa-pmc.conf',
                 stdin=HOOK_CONF)
        self.run('nova-numa-rebalance hook install && systemctl reload libvirtd')

    def clean(self):
        """End guests and undo what tests do to a machine."""
        self.guests.stop()
        self.run('nova-numa-rebalance hook remove >/dev/null; systemctl reload libvirtd;'
                 ' umount /run/skew 2>/dev/null; rm -rf /run/nova-numa-pmc /etc/nova-numa-pmc;'
                 ' echo 3 >/proc/sys/vm/drop_caches; echo 0 >/proc/sys/kernel/numa_balancing',
                 check=False)
        self.machine.pace(0)

    def journal(self):
        """Return what the hook logged, a list of lines."""
        return self.run('journalctl -q -t nova-numa-pmc -o cat --no-pager').stdout.splitlines()


@pytest.fixture(scope='session')
def machines():
    """Give Lab objects by shape; machines stay up for the session."""
    up = {}

    def get(**options):
        shape = Shape(**options)
        if shape not in up:
            if len(up) > 1:        # two cores hold two machines, not five
                up.pop(next(iter(up))).machine.down()
            up[shape] = Lab(Machine.up(f'test-{os.getpid()}-{shape.key()[:6]}', shape))
        return up[shape]

    yield get
    for lab in up.values():
        lab.machine.down()


@pytest.fixture
def lab_of(machines):
    """Give a clean Lab of any shape: ``lab_of(nodes=4, memory_mib=(1024,) * 4)``."""
    used = []

    def get(**options):
        lab = machines(**options)
        used.append(lab)
        return lab

    yield get
    for lab in used:
        lab.clean()


@pytest.fixture
def lab(lab_of):
    """Give the default machine: two nodes of two CPUs and 2 GiB, cgroup v2."""
    return lab_of()
