#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside a host: report on which nodes the guests' vCPUs spent their CPU time.

Prints ``{guest: {node: ticks}}``. The time between two looks counts for the node of the CPU on
which the vCPU ran last (proc(5), ``stat``), which is right if it moves less often than that.
"""

import contextlib
import json
import pathlib
import time

import labguests

SAMPLES, PAUSE_S = 16, 0.3
UTIME, STIME, PROCESSOR = 11, 12, 36  # after the name: fields 14, 15 and 39


def nodes():
    """Return {CPU: node}."""
    return {
        int(path.name[3:]): int(path.parent.name[4:])
        for path in pathlib.Path('/sys/devices/system/node').glob('node[0-9]*/cpu[0-9]*')
    }


def vcpus():
    """Return {vCPU's stat file: guest}."""
    stat_files = {}
    for name, pid in labguests.pids().items():
        # A guest may end in the meantime.
        with contextlib.suppress(OSError):
            stat_files.update({task / 'stat': name for task in labguests.vcpus(pid)})
    return stat_files


def read_stat(path):
    """Return (ticks so far, CPU), or None if the vCPU has gone."""
    try:
        fields = path.read_text().rpartition(')')[2].split()
    except OSError:
        return None
    return int(fields[UTIME]) + int(fields[STIME]), int(fields[PROCESSOR])


if __name__ == '__main__':
    node_of, paths, before, ticks = nodes(), vcpus(), {}, {}
    for _ in range(SAMPLES):
        for stat, guest in paths.items():
            stat_now = read_stat(stat)
            if stat_now and stat in before:
                spent = ticks.setdefault(guest, {})
                node = node_of[stat_now[1]]
                spent[node] = spent.get(node, 0) + stat_now[0] - before[stat]
            if stat_now:
                before[stat] = stat_now[0]
        time.sleep(PAUSE_S)
    print(json.dumps(ticks))
