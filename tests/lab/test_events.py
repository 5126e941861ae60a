# SPDX-License-Identifier: Apache-2.0
"""Test the agent's work without libvirt."""

import pytest
from machine.agent import INTERVAL_S

# They take minutes: `make lab-full` runs them.
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_the_agent_works_while_libvirtd_is_stopped(agent):
    """Without libvirtd, the agent ticks, publishes and holds guests; later, it reconnects."""
    agent.start(rebalance='off')
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
