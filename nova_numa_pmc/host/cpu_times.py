# SPDX-License-Identifier: Apache-2.0
"""How long each CPU was busy, and how long threads waited for it, from procfs."""

import os

from nova_numa_pmc.host.cgroups import read_text

#: user, nice, system, irq, softirq: fields of /proc/stat (Documentation/filesystems/proc.rst).
#: Guests' time is in user and nice already; iowait is idle; stolen time was another host's.
_BUSY_FIELDS = (0, 1, 2, 5, 6)
_SCHEDSTAT_VERSIONS = range(14, 100)


def busy_ns(root='/'):
    """Return {CPU: ns that it ran something, cumulative} of the online CPUs; None: not told.

    In ticks of 10 ms. The run times in ``/proc/schedstat`` are finer, but grow only when a
    thread leaves its CPU, which a busy vCPU may not do for seconds.
    """
    try:
        lines = read_text(os.path.join(root, 'proc/stat')).splitlines()
    except OSError:
        return None
    tick_ns = 10**9 // os.sysconf('SC_CLK_TCK')
    times = {}
    for line in lines:
        name, _, rest = line.partition(' ')
        if not name.startswith('cpu') or name == 'cpu':
            continue
        fields = _numbers(rest.split())
        if not _is_number(name[3:]) or fields is None or len(fields) < 7:
            return None
        times[int(name[3:])] = tick_ns * sum(fields[at] for at in _BUSY_FIELDS)
    return times or None


def waiting_ns(root='/'):
    """Return {CPU: ns that threads waited for it, cumulative}; None: not told.

    The eighth number of a line of ``/proc/schedstat`` (Documentation/scheduler/sched-stats.rst),
    which takes CONFIG_SCHEDSTATS.
    """
    try:
        lines = read_text(os.path.join(root, 'proc/schedstat')).splitlines()
    except OSError:
        return None
    version = lines[0].removeprefix('version ') if lines else ''
    if not _is_number(version) or int(version) not in _SCHEDSTAT_VERSIONS:
        return None
    times = {}
    for line in lines:
        name, _, rest = line.partition(' ')
        if name.startswith('cpu'):
            fields = _numbers(rest.split())
            if not _is_number(name[3:]) or fields is None or len(fields) != 9:
                return None
            times[int(name[3:])] = fields[7]
    return times or None


def _numbers(words):
    return [int(word) for word in words] if all(map(_is_number, words)) else None


def _is_number(text):
    return text.isascii() and text.isdigit() and len(text) < 21


def by_node(before, after, topology):
    """Return {node id: ns passed on the CPUs that guests may use}; None: unknown.

    A node with a CPU that is in one reading only (hotplug), or whose time went backwards,
    is unknown.

    :param before, after: {CPU: ns} or None
    """
    passed = {}
    for node in topology.nodes:
        deltas = [None if before is None or after is None or cpu not in before
                  or cpu not in after else after[cpu] - before[cpu] for cpu in node.cpus]
        known = all(delta is not None and delta >= 0 for delta in deltas)
        passed[node.id] = sum(deltas) if known else None
    return passed
