# SPDX-License-Identifier: Apache-2.0
"""Test the agent's reaction to events of libvirt, and its work without libvirt."""

import json
import statistics

import pytest
from machine.agent import INTERVAL_S, Agent
from machine.image import LAB
from machine.vm import LAB_DIR

# They take minutes: `make lab-full` runs them.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROUNDS = 3


@pytest.fixture
def watcher(lab):
    """Provide an agent that is not started yet, on a machine without the hook."""
    lab.run('mkdir -p /etc/nova-numa-pmc')
    agent = Agent(lab)
    yield agent
    print('\n'.join(agent.journal()[-40:]))
    agent.stop()


def test_the_agent_reacts_to_guest_changes_before_its_next_tick(watcher):
    """A start, a pin and an end are recorded at once, not a tick later; a plugged vCPU in a tick.

    libvirt sends no event for the latter.
    """
    watcher.start()
    watcher.after(1)
    watcher.lab.machine.push([LAB / 'inside/labguests.py', LAB / 'inside/labreact.py'], LAB_DIR)
    reaction_s = json.loads(
        watcher.run(
            f'python3 {LAB_DIR}/labreact.py',
            timeout=600,
            stdin=json.dumps({'rounds': ROUNDS, 'interval_s': INTERVAL_S}),
        ).stdout
    )
    for action, seconds in reaction_s.items():
        assert None not in seconds, reaction_s
        print(f'{action}: median {statistics.median(seconds):.2f} s, all {seconds}')
    assert max(reaction_s.pop('plug')) < 2 * INTERVAL_S
    assert all(statistics.median(seconds) < INTERVAL_S / 3 for seconds in reaction_s.values())


def test_the_agent_works_while_libvirtd_is_stopped(agent):
    """Without libvirtd, the agent ticks, publishes and holds guests; later, it reconnects."""
    agent.start()
    agent.until(lambda: agent.after(1)['events_source'], lambda by: by == 'libvirt')
    agent.lab.guests.start([{'name': 'g', 'memory_mib': 16}])
    agent.lab.wait_for_hooks()
    held = agent.lab.cpusets()
    agent.run('systemctl kill -s STOP libvirtd')
    try:
        agent.run('sleep 25')
        state = agent.until(
            lambda: agent.published()[0],
            lambda host: host['events_source'] == 'status files: libvirt does not answer',
        )
        # Reset by hand, and rewritten by a tick; only our guests, because each has a cpuset.
        for path, text in held.items():
            if path.endswith('cpuset.cpus') and text in ('0-1', '2-3'):
                agent.run(f"echo 0-3 >'{path}'")
        agent.until(agent.lab.cpusets, lambda cpusets: cpusets == held, seconds=INTERVAL_S * 2)
        assert (
            'libvirt does not answer'
            in agent.run('nova-numa-rebalance status', timeout=200).stdout
        )
        agent.run('sleep 20')
        later, age_s = agent.published()
        assert later['taken_s'] > state['taken_s'] + 20 and age_s < 3 * INTERVAL_S
    finally:
        agent.run('systemctl kill -s CONT libvirtd')
    agent.until(lambda: agent.published()[0]['events_source'], lambda by: by == 'libvirt')
    assert agent.lab.running() == ['g']
    messages = [
        line
        for line in agent.journal()
        if line.startswith('the agent learns of changes to guests from')
    ]
    assert messages == [
        'the agent learns of changes to guests from libvirt',
        'the agent learns of changes to guests from status files: libvirt does not answer',
        'the agent learns of changes to guests from libvirt',
    ], messages
