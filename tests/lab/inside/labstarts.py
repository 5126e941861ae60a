#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In the namespace of tests/lab/starts.py: start guests ten at a time, count and end them."""

import concurrent.futures
import json
import pathlib
import sys
import time

import labguests

ROUND = 10
THREADS = ('CPU ', 'qemu-system', 'IO mon')


def start(at):
    """Start a paused guest; return (its name, virsh's exit code, its messages)."""
    name = f'g{at}'
    path = labguests.LOGS / f'{name}.xml'
    cpuset = " cpuset='0-1'" if at % 2 else ''
    path.write_text(
        labguests.domain_xml(
            {'name': name, 'memory_mib': 16, 'vcpu': f"placement='static'{cpuset}"}
        ).replace("type='kvm'", "type='qemu'", 1)
    )
    return (name, *labguests.virsh('create', str(path), '--paused'))


def masks(pid):
    """Return the set of the CPU lists that a guest's threads may use."""
    allowed = set()
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        try:
            if (task / 'comm').read_text().startswith(THREADS):
                status = (task / 'status').read_text()
                allowed.add(status.split('Cpus_allowed_list:')[1].split()[0])
        except OSError:
            continue  # the thread has ended
    return allowed


def not_held(names):
    """Return the names of guests that are not held to one node's CPUs after two seconds."""
    deadline = time.monotonic() + 2
    while True:
        pids = labguests.pids()
        missing = [
            name
            for name in names
            if name not in pids or len(masks(pids[name])) != 1 or masks(pids[name]) == {'0-1'}
        ]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.05)


def main(starts, parallel, hook):
    """Start this number of guests; print the failures, and the totals as one JSON object."""
    labguests.LOGS.mkdir(exist_ok=True)
    began, done, failed, loose = time.monotonic(), 0, 0, 0
    while done < starts:
        with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
            results = list(pool.map(start, range(ROUND)))
            names = [name for name, code, _ in results if not code]
            for name, code, message in results:
                if code:
                    print(f'round {done // ROUND}: {name}: {message}', flush=True)
            for name in not_held(names) if hook == 'yes' else ():
                loose += 1
                print(f'round {done // ROUND}: {name} is not held', flush=True)
            list(pool.map(lambda name: labguests.virsh('destroy', name), names))
        done += ROUND
        failed += ROUND - len(names)
        if not done % 100:
            print(
                f'{done} starts, {failed} failed, {loose} not held, '
                f'{time.monotonic() - began:.0f} s',
                flush=True,
            )
    version = 'v2' if labguests.V2 else 'v1'
    print(
        json.dumps(
            {
                'starts': done,
                'failed': failed,
                'not_held': loose,
                'cgroup': version,
                'hook': hook == 'yes',
                'seconds': round(time.monotonic() - began, 1),
            }
        )
    )


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
