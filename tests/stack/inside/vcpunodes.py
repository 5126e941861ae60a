#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs inside a host: reports on which nodes the guests' vCPUs spent their CPU time.

Prints ``{guest: {node: ticks}}``. The time between two looks counts for the node of the CPU on
which the vCPU ran last (proc(5), ``stat``), which is right if it moves less often than that.
"""

import contextlib
import json
import pathlib
import time

import labguests

LOOKS, PAUSE_S = 16, 0.3
UTIME, STIME, PROCESSOR = 11, 12, 36  # after the name: fields 14, 15 and 39


def nodes():
    """Return {CPU: node}."""
    return {
        int(path.name[3:]): int(path.parent.name[4:])
        for path in pathlib.Path('/sys/devices/system/node').glob('node[0-9]*/cpu[0-9]*')
    }


def vcpus():
    """Return {vCPU's stat file: guest}."""
    found = {}
    for name, pid in labguests.pids().items():
        # A guest may end in the meantime.
        with contextlib.suppress(OSError):
            found.update({task / 'stat': name for task in labguests.vcpus(pid)})
    return found


def look(path):
    """Return (ticks so far, CPU), or None if the vCPU has gone."""
    try:
        fields = path.read_text().rpartition(')')[2].split()
    except OSError:
        return None
    return int(fields[UTIME]) + int(fields[STIME]), int(fields[PROCESSOR])


if __name__ == '__main__':
    node_of, paths, before, found = nodes(), vcpus(), {}, {}
    for _ in range(LOOKS):
        for stat, guest in paths.items():
            seen = look(stat)
            if seen and stat in before:
                spent = found.setdefault(guest, {})
                node = node_of[seen[1]]
                spent[node] = spent.get(node, 0) + seen[0] - before[stat]
            if seen:
                before[stat] = seen[0]
        time.sleep(PAUSE_S)
    print(json.dumps(found))
