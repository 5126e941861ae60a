# SPDX-License-Identifier: Apache-2.0
"""Does the agent publish the host's state, and can nova-compute see it."""

import os

from nova_numa_pmc import host_state
from nova_numa_pmc.checks import finding
from nova_numa_pmc.checks.finding import Finding
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.movement import pausing


def check_published(directory, now_s):
    """Check that the host's state is there, understood and fresh.

    :param directory: of the state, as we see it
    :param now_s: CLOCK_REALTIME
    """
    path = os.path.join(directory, host_state.FILE)
    if not os.path.exists(path):
        yield Finding('state-missing', finding.ERROR,
                      '%s is not there: the monitor has nothing to send' % path,
                      'systemctl enable --now nova-numa-agent', path)
        return
    try:
        published = host_state.read(directory)
    except StateError as error:
        yield Finding('state-unreadable', finding.ERROR, str(error),
                      'systemctl restart nova-numa-agent', path)
        return
    age_s, freshness = now_s - published.taken_s, host_state.freshness(published, now_s)
    if freshness == host_state.STALE:
        yield Finding(
            'state-stale', finding.ERROR,
            'the host\'s state is %.0f s old, and was measured every %.0f s: the scheduler takes '
            'this host as unknown' % (age_s, published.interval_s),
            'systemctl status nova-numa-agent; journalctl -u nova-numa-agent', path)
    elif freshness == host_state.FUTURE:
        yield Finding('state-from-the-future', finding.WARNING,
                      'the host\'s state was taken %.0f s from now: the clock was set back'
                      % -age_s, 'restart nova-numa-agent once the clock is right', path)


def check_paused(directory):
    """Check that the agent has not been left paused.

    :param directory: of the state, as we see it
    """
    paused = pausing.read(directory)
    if paused:
        yield Finding('agent-paused', finding.WARNING,
                      'the agent moves no guest: %s' % str(paused), 'nova-numa-rebalance resume',
                      os.path.join(directory, pausing.FILE))


def check_shared(directory, process):
    """Check that a nova-compute in a container sees the state directory.

    :param directory: the state directory's path on the host ('/run/nova-numa-pmc')
    :param process: :class:`~nova_numa_pmc.checks.processes.Process`, None: not running
    """
    if process is None or process.same_root:
        return
    inside = process.path(os.path.join(directory, host_state.FILE))
    if not os.path.exists(inside):
        yield Finding(
            'state-not-in-container', finding.ERROR,
            '%s (pid %d) runs in a container that does not see %s' % (
                process.name, process.pid, directory),
            'mount %s read-only into its container' % directory, inside)
