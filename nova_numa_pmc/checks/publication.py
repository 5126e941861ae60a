# SPDX-License-Identifier: Apache-2.0
"""Check that the agent's publication exists, can be seen by nova-compute, and lacks nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core import finding, pools, pressure
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import nova_conf
from nova_numa_pmc.state import move_lock, pause, publication

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nova_numa_pmc.host.nova_conf import NovaConf
    from nova_numa_pmc.host.services import Process

#: Sources that do not count accesses.
_NOT_COUNTING = ('', opts.PAGES)
_WHY = '"nova-numa-rebalance check --events" and "status --interval 1" say what is missing'


def check_publication(directory: str, realtime_s: float, conf: NovaConf) -> Iterator[Finding]:
    """Check that the publication exists, can be read, is fresh, and what it lacks.

    :param directory: the state directory, as this process sees it
    :param realtime_s: CLOCK_REALTIME
    :param conf: configuration of nova-compute; it may have no file
    """
    path = os.path.join(directory, publication.FILE)
    if not os.path.exists(path):
        yield Finding(
            'publication-missing',
            finding.ERROR,
            '%s does not exist: the monitor has nothing to send' % path,
            'systemctl enable --now nova-numa-agent',
            path,
        )
        return
    try:
        published = publication.read(directory)
    except StateError as error:
        yield Finding(
            'publication-unreadable',
            finding.ERROR,
            str(error),
            'systemctl restart nova-numa-agent',
            path,
        )
        return
    yield from _check_fresh(published, realtime_s, path)
    yield from _check_pool(published, conf)
    bandwidth = {
        node.id: pressure.view_pressure(node).bandwidth_ratio
        for node in published.view.nodes
        if node.cores
    }
    yield from check_counting(published.source, bandwidth)


def _check_fresh(
    published: publication.Publication, realtime_s: float, path: str
) -> Iterator[Finding]:
    age_s, freshness = realtime_s - published.taken_s, publication.freshness(published, realtime_s)
    if freshness == publication.STALE:
        yield Finding(
            'publication-stale',
            finding.ERROR,
            'the publication is %.0f s old, though the host is measured every %.0f s: the '
            'scheduler uses these figures until they are too old' % (age_s, published.interval_s),
            'systemctl status nova-numa-agent; journalctl -u nova-numa-agent',
            path,
        )
    elif freshness == publication.FUTURE:
        yield Finding(
            'publication-from-the-future',
            finding.WARNING,
            'the publication is dated %.0f s in the future: the clock was set back' % -age_s,
            'restart nova-numa-agent once the clock is right',
            path,
        )


def _check_pool(published: publication.Publication, conf: NovaConf) -> Iterator[Finding]:
    """Check that the agent knows the CPUs that Nova's configuration names, if it does."""
    sets = nova_conf.shared_set(conf), nova_conf.DEDICATED_SET
    options = [option for option in sets if conf.get(*option)]
    if options and published.pool_source in (pools.GUESTS, pools.KERNEL):
        file = conf.file_of(*options[0])
        yield Finding(
            'cpu-sets-not-read',
            finding.WARNING,
            "the agent's list of the CPUs that guests share comes from %s, not from %s: it cannot "
            "read nova-compute's configuration, or cannot use the value there"
            % (
                "the guests' XML" if published.pool_source == pools.GUESTS else 'all usable CPUs',
                ' and '.join(name for name, _ in options),
            ),
            'journalctl -u nova-numa-agent; let the agent read %s' % file,
            file,
        )


def check_paused(root: str) -> Iterator[Finding]:
    """Check that the agent has not been left paused, and that its moves pay."""
    paused = pause.read(root)
    if not paused:
        return
    remedy = 'nova-numa-rebalance pause --off'
    if paused.only_memory:
        message = 'the agent moves no memory: %s' % paused.reason
        yield Finding('moves-stopped', finding.WARNING, message, remedy)
    else:
        message = 'the agent moves no guest: ' + str(paused)
        yield Finding('agent-paused', finding.WARNING, message, remedy, pause.path(root))


def check_turns(directory: str) -> Iterator[Finding]:
    """Check that no process that moves guests is suspended or hangs.

    :param directory: the state directory, as this process sees it
    """
    for turn in move_lock.read_lapsed(directory):
        yield Finding(
            'mover-suspended',
            finding.WARNING,
            '%s; the guest that it was moving is held to its new place'
            % move_lock.lapsed_text(turn),
            'let it end its move (kill -CONT %d), or kill it' % turn.pid,
            os.path.join(directory, move_lock.FILE),
        )


def check_visible(directory: str, process: Process | None) -> Iterator[Finding]:
    """Check that a nova-compute in a container sees the state directory.

    :param directory: path of the state directory on the host ('/run/nova-numa-pmc')
    :param process: the service; None: it is not running
    """
    if process is None or process.same_root:
        return
    inside = host_options.path_under_root(process.root, os.path.join(directory, publication.FILE))
    if not os.path.exists(inside):
        yield Finding(
            'publication-not-in-container',
            finding.ERROR,
            '%s (pid %d) runs in a container that does not see %s'
            % (process.name, process.pid, directory),
            'mount %s read-only into its container' % directory,
            inside,
        )


def check_counting(source: str, bandwidth: Mapping[int, float | None]) -> Iterator[Finding]:
    """Say what a host does not count, and what to do about it.

    :param source: the best source of the guests' memory accesses; empty: none
    :param bandwidth: {node id: utilisation of its memory bandwidth}, of nodes with CPUs
    """
    unknown = [node for node, ratio in bandwidth.items() if ratio is None]
    if source in _NOT_COUNTING and len(unknown) == len(bandwidth):
        yield Finding(
            'counts-nothing',
            finding.NOTE,
            'this host counts neither memory traffic nor accesses: guests are placed by CPU '
            'time, promises and where their pages are',
            '%s; on a physical host, load its driver of uncore counters (intel_uncore, '
            'amd_uncore) and mount resctrl' % _WHY,
        )
        return
    if unknown:
        yield Finding(
            'bandwidth-unknown',
            finding.NOTE,
            'the bandwidth of %s is left out of the pressure: its traffic or its maximum is '
            'unknown' % name_nodes(unknown),
            '%s; if only the maximum is, set [counters] node_bandwidth_max' % _WHY,
        )
    if source in _NOT_COUNTING:
        yield Finding(
            'guests-not-counted',
            finding.NOTE,
            "traffic is counted, but not whose it is: the guests' accesses are inferred from "
            '%s' % (source or 'nothing'),
            '%s; mount resctrl if the CPU has it' % _WHY,
        )
