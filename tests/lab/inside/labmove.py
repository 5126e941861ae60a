#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: move a guest, and report the effects on the guest and the host.

Reads one JSON request on standard input. ``{"do": "move", "guest", "node", "cpus", "ours",
"mib_per_sec", "cancel_after_mib", "undo"}`` writes a line of JSON for each step, the last with the
result; ``ours`` are the CPUs to which an earlier move has held the guest. ``{"do": "measure",
"how", …}`` moves it in that way ("ours", or another process's way: "migratepages", "narrow", or
"none" for no move), while other processes write cgroup.procs and start scopes; it answers with one
JSON object.
"""

import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import threading
import time

import labguests

from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.host import cgroups, cpusets, holding
from nova_numa_pmc.host.page_moves import guest_move

PROBE = labguests.ROOT / 'labprobe'
REST_S = 3  # observed before and after a move


def thp_bytes(groups):
    """Return how much of a guest's memory is transparent huge pages, by its memory.stat."""
    names = ('anon_thp', 'shmem_thp') if groups.version == 2 else ('rss_huge',)
    machine = cgroups.find_machine_group(groups.pid, 'memory')
    group = pathlib.Path(machine.scope, *(machine.tail if machine.version == 1 else ()))
    lines = (group / 'memory.stat').read_text().splitlines()
    sizes = dict(line.split(' ') for line in lines)
    return sum(int(sizes[name]) for name in names if name in sizes)


def write_cpus(groups, request):
    """Hold a guest to the requested CPUs, if any; return the changes."""
    if not request.get('cpus'):
        return ()
    cpus, ours = parse_cpulist(request['cpus']), parse_cpulist(request.get('ours', ''))
    return holding.hold(groups, cpus, written_cpus=ours)


def move(request):
    """Move a guest to a node; report each step."""
    groups = cgroups.find(labguests.pids()[request['guest']])
    limits = guest_move.PageMoveLimits(bytes_per_sec=request.get('mib_per_sec', 1 << 20) << 20)
    # Emulated, a batch of any size takes longer than a guest may stall.
    limits = limits._replace(stall_max_s=10.0)
    mover = guest_move.GuestMove(
        groups, (request['node'],), lambda: write_cpus(groups, request), limits=limits
    )
    cancel_at = request.get('cancel_after_mib', 1 << 40) << 20

    thp_before_bytes, began = thp_bytes(groups), time.monotonic()
    while mover.progress.state == guest_move.MOVING:
        progress = mover.step()
        if progress.moved_bytes >= cancel_at:
            mover.cancel()
        print(json.dumps(progress._asdict()), flush=True)
        time.sleep(progress.wait_s)
    ended, elapsed_s = mover.progress, time.monotonic() - began
    sets_before = cpusets.read_sets(groups, 'cpus')
    if request.get('undo'):
        mover.undo_cpus()
    print(
        json.dumps(
            {
                **ended._asdict(),
                'elapsed_s': elapsed_s,
                'rate': ended.moved_bytes / elapsed_s,
                'thp_before_bytes': thp_before_bytes,
                'thp_bytes': thp_bytes(groups),
                'undone': [
                    directory
                    for directory, sets in cpusets.read_sets(groups, 'cpus').items()
                    if sets != sets_before[directory]
                ],
            }
        ),
        flush=True,
    )


def move_as_requested(request):
    """Move a guest in the requested way; return (start, end, bytes moved, what is reported)."""
    how, name = request['how'], request['guest']
    pid = labguests.pids()[name]
    before = labguests.numa_bytes(pid).get(str(request['node']), 0)
    began, result = time.monotonic(), {}
    if how == 'none':
        time.sleep(request.get('seconds', 8))
    elif how == 'ours':
        lines = subprocess.run(
            [sys.executable, __file__],
            check=True,
            text=True,
            input=json.dumps({**request, 'do': 'move'}),
            stdout=subprocess.PIPE,
        ).stdout.splitlines()
        result = json.loads(lines[-1])
        # The start of Python is not included.
        began = time.monotonic() - result['elapsed_s']
    elif how == 'migratepages':
        subprocess.run(
            ['migratepages', str(pid), str(1 - request['node']), str(request['node'])], check=True
        )
    else:
        scope = labguests.scope(labguests.group(pid, 'cpuset'))
        (scope / 'cpuset.mems').write_text(str(request['node']))
    ended = time.monotonic()
    if how == 'narrow':
        (scope / 'cpuset.mems').write_text('0-1')
    moved = labguests.numa_bytes(pid).get(str(request['node']), 0) - before
    return began, ended, moved, result


class Probes:
    """Other processes' work on the host, with times: {what: [(start, seconds), …]}."""

    def __init__(self):
        """Make two groups with the cpuset controller (v2) to switch between."""
        self.took = {'cgroup.procs': [], 'systemd-run': []}
        self._over = threading.Event()
        PROBE.mkdir(exist_ok=True)
        groups = [PROBE / 'a', PROBE / 'b']
        (PROBE / 'cgroup.subtree_control').write_text('+cpuset')
        for group in groups:
            group.mkdir(exist_ok=True)
        self._sleeper = subprocess.Popen(['sleep', '1000'])
        self._threads = [
            threading.Thread(target=self._repeat, args=('cgroup.procs', self._write(groups))),
            threading.Thread(target=self._repeat, args=('systemd-run', self._scope)),
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, groups):
        def write():
            groups.reverse()
            (groups[0] / 'cgroup.procs').write_text(str(self._sleeper.pid))

        return write

    @staticmethod
    def _scope():
        subprocess.run(['systemd-run', '-q', '--scope', 'true'], check=True)

    def _repeat(self, what, work):
        while not self._over.wait(0.05):
            began = time.monotonic()
            work()
            self.took[what].append((began, time.monotonic() - began))

    def end(self):
        """Stop, and remove the groups."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._sleeper.kill()
        self._sleeper.wait()
        for directory in (PROBE / 'a', PROBE / 'b', PROBE):
            with contextlib.suppress(OSError):
                directory.rmdir()

    def during(self, began, ended):
        """Summarize what started or was waited for in an interval [ms]."""
        findings = {}
        for what, delays in self.took.items():
            inside = [
                seconds * 1000 for at, seconds in delays if at < ended and at + seconds > began
            ]
            findings[what] = {
                'times': len(inside),
                'max_ms': max(inside, default=None),
                'median_ms': statistics.median(inside) if inside else None,
            }
        return findings


class AccessCounts:
    """A guest's DRAM accesses by perf, one number for each half second as it arrives."""

    def __init__(self, pid):
        """Start counting the threads of a process."""
        self._seen = []
        self._perf = subprocess.Popen(
            f'perf stat -x , -I 500 -p {pid} -e '
            'numa_emu/local_dram/GH,numa_emu/remote_dram/GH'.split(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        for line in self._perf.stderr:
            fields = line.split(',')
            if 'numa_emu' in line and fields[1].strip().isdigit():
                self._seen.append((time.monotonic(), int(fields[1]), fields[0]))

    def end(self):
        """Stop counting."""
        self._perf.send_signal(2)
        self._perf.wait()
        self._thread.join()

    def per_sec(self, began, ended):
        """Return accesses per second in an interval, or None if no count lies wholly in it."""
        inside = [(count, half) for at, count, half in self._seen if began + 0.5 <= at <= ended]
        halves = len({half for _, half in inside})
        return 2 * sum(count for count, _ in inside) / halves if halves else None


def move_and_measure(request):
    """Move a guest while other processes work; report the effects on it and on them."""
    accesses = AccessCounts(labguests.pids()[request['guest']])
    probes = Probes() if request.get('probes', True) else None
    try:
        time.sleep(1)
        first = time.monotonic()
        time.sleep(REST_S)
        began, ended, moved, result = move_as_requested(request)
        time.sleep(REST_S)
        last = time.monotonic()
    finally:
        accesses.end()
        if probes:
            probes.end()
    print(
        json.dumps(
            {
                'how': request['how'],
                'seconds': ended - began,
                'moved_bytes': moved,
                'bytes_per_sec': moved / (ended - began),
                'result': result,
                'accesses_per_sec': {
                    'before': accesses.per_sec(first, began),
                    'during': accesses.per_sec(began, ended),
                    'after': accesses.per_sec(ended, last),
                },
                'others': probes.during(began, ended) if probes else None,
            }
        )
    )


if __name__ == '__main__':
    request = json.load(sys.stdin)
    {'move': move, 'measure': move_and_measure}[request['do']](request)
