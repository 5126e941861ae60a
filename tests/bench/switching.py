# SPDX-License-Identifier: Apache-2.0
"""Time the round trip between two processes on one CPU that only switch to each other."""

import contextlib
import os
import subprocess
import time

from tests.bench import perf_stat

ROUNDS = 10**9
START_S = 30


@contextlib.contextmanager
def load(with_perf, cpu, groups):
    """Run two such processes; yield (a description, their ids); end them.

    :param with_perf: take ``perf bench sched pipe``
    :param groups: a control group for each
    """
    with _perf_pipe() if with_perf else _own_pipe() as (name, pids):
        for pid, group in zip(pids, groups):
            os.sched_setaffinity(pid, {cpu})
            with open(os.path.join(group, 'cgroup.procs'), 'w', encoding='ascii') as file:
                file.write(str(pid))
        yield name, pids


@contextlib.contextmanager
def _perf_pipe():
    process = subprocess.Popen(
        ['perf', 'bench', 'sched', 'pipe', '-l', str(ROUNDS)], stdout=subprocess.DEVNULL
    )
    children = []
    try:
        until = time.monotonic() + START_S
        while not children:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError('perf bench sched pipe does not run')
            with open(
                '/proc/%d/task/%d/children' % (process.pid, process.pid), encoding='ascii'
            ) as file:
                children = [int(pid) for pid in file.read().split()]
        yield 'perf bench sched pipe', (process.pid, children[0])
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.kill()
        process.wait()


@contextlib.contextmanager
def _own_pipe():
    here, there = os.pipe(), os.pipe()
    os.write(here[1], b'x')
    pids = []
    try:
        for source, sink in ((here[0], there[1]), (there[0], here[1])):
            pid = os.fork()
            if not pid:
                while True:
                    os.write(sink, os.read(source, 1))
            pids.append(pid)
        yield 'two processes and two pipes', tuple(pids)
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        for fd in (*here, *there):
            os.close(fd)


def round_trip_s(pids, window_s):
    """Return the CPU seconds of a round trip: the run time of both, divided by their switches.

    This is CPU time, so that other load on the machine matters little.
    """
    before = [perf_stat.run_ns(pid) for pid in pids]
    time.sleep(window_s)
    after = [perf_stat.run_ns(pid) for pid in pids]
    ran, times = (sum(new[at] - old[at] for old, new in zip(before, after)) for at in (0, 1))
    return 2 * ran / 1e9 / times
