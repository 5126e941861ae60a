# SPDX-License-Identifier: Apache-2.0
"""Run each command of the operator's page on incidents, on a host with guests.

These tests take minutes: `make lab-full` runs them.
"""

import pathlib
import re

import pytest

pytestmark = pytest.mark.full

PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/admin/incident.rst'
#: Done; a problem was found; moves would pay. systemctl: 3, a service that is not active.
EXIT_CODES = (0, 1, 2, 3)


def test_each_command_for_an_incident_answers_and_no_guest_is_stopped(agent):
    """The commands run in the order of the page, which ends with those that stop everything."""
    lab = agent.lab
    lab.guests.start([{'name': f'g{i}', 'memory_mib': 32} for i in range(2)])
    agent.start()
    agent.after(2)
    commands = re.findall(r'^    (\S.*)$', PAGE.read_text(encoding='utf-8'), re.M)
    assert len(commands) == 30, commands
    for command in commands:
        done = lab.run(command.replace('GUEST', 'g0'), timeout=300, check=False)
        print(f'$ {command} -> {done.returncode}\n{done.stdout}{done.stderr}')
        assert done.returncode in EXIT_CODES, command
        assert 'Traceback' not in done.stdout + done.stderr, command
    assert lab.running() == ['g0', 'g1'] and not lab.oom_kills()
