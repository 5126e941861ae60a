#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: measure how soon the agent reacts to libvirt's commands.

Reads ``{"rounds": N, "interval_s": S}`` on standard input and answers with
``{action: [seconds]}``: the time from the return of virsh (for a start, from libvirt's writing of
the pid file, because virsh takes longer) until the agent logged what it recorded. 0 means before
virsh returned, null that it never did.
"""

import json
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import labguests  # noqa: E402

#: Action → the line that the agent writes about a guest.
LINES = {
    'start': 'runs without a promise',
    'plug': 'now has 2 vCPUs',
    'pin': 'now placed by others: vcpupin',
    'stop': 'its promise of',
}


def one_round(name, pause_s):
    """Do each action with a guest; return {action: when virsh returned}."""
    path = labguests.LOGS / f'{name}.xml'
    path.write_text(
        labguests.domain_xml(
            {'name': name, 'vcpus': 2, 'vcpu': "placement='static' current='1'", 'memory_mib': 16}
        )
    )
    returned = {}
    for action, words in (
        ('start', ('create', str(path))),
        ('plug', ('setvcpus', name, '2', '--live')),
        ('pin', ('vcpupin', name, '0', '0', '--live')),
        ('stop', ('destroy', name)),
    ):
        code, message = labguests.virsh(*words)
        if code:
            raise OSError(f'{action}: {message}')
        pid = pathlib.Path(f'/run/libvirt/qemu/{name}.pid')
        returned[action] = pid.stat().st_mtime if action == 'start' else time.time()
        time.sleep(pause_s())
    return returned


def main():
    """Go through the rounds, then read what the agent has logged."""
    request = json.load(sys.stdin)
    began_s, rng = time.time(), random.Random(1)
    labguests.LOGS.mkdir(exist_ok=True)
    rounds = {
        f'r{at}': one_round(f'r{at}', lambda: request['interval_s'] * rng.uniform(1.5, 2.5))
        for at in range(request['rounds'])
    }
    text = subprocess.run(
        ['journalctl', '-q', '-u', 'nova-numa-agent', '-o', 'json', f'--since=@{began_s:.0f}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    messages = [
        (int(entry['__REALTIME_TIMESTAMP']) / 1e6, entry['MESSAGE'])
        for entry in map(json.loads, text.splitlines())
    ]
    delays_s = {action: [] for action in LINES}
    for name, returned in rounds.items():
        for action, at_s in returned.items():
            when = [
                told_s
                for told_s, line in messages
                if line.startswith(f'guest {name}: {LINES[action]}')
            ]
            delays_s[action].append(max(0.0, round(when[0] - at_s, 3)) if when else None)
    print(json.dumps(delays_s))


if __name__ == '__main__':
    main()
