# SPDX-License-Identifier: Apache-2.0
"""Measure what counting costs: per sample, in descriptors, and per context switch.

Guests are counted by their vCPU threads or by their control groups, four
events each, on this kernel's software events: switching those costs less than
switching a hardware counter's registers, so the figures are lower bounds.
``perf stat --for-each-cgroup`` does the same beside it: the same groups, CPUs and
events, read at the same rate.
"""

import argparse
import contextlib
import functools
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from nova_numa_pmc import exceptions
from nova_numa_pmc.host import counters, events, perf

EVENTS = tuple(events.Event(name, name, 'software', 1, code) for name, code in (
    ('task-clock', 1), ('page-faults', 2), ('context-switches', 3), ('cpu-migrations', 4)))
VCPUS = 4
CPUS = tuple(sorted(os.sched_getaffinity(0)))


def find_hierarchy():
    """Return a mounted hierarchy whose groups can be counted, or None."""
    with open('/proc/self/mounts', encoding='utf-8') as file:
        mounts = [line.split() for line in file]
    for mount in mounts:
        if mount[2] == 'cgroup2' or mount[2] == 'cgroup' and 'perf_event' in mount[3]:
            with contextlib.suppress(exceptions.CounterError):
                perf.Group(EVENTS, perf.cgroup(mount[1], CPUS[0])).close()
                return mount[1]
    return None


@contextlib.contextmanager
def control_groups(hierarchy, number):
    """Create groups below the hierarchy; yield their paths; remove them."""
    paths = [os.path.join(hierarchy, 'numa-pmc-bench-%d-%d' % (os.getpid(), one))
             for one in range(number)]
    try:
        for path in paths:
            os.mkdir(path)
        yield paths
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                os.rmdir(path)


@contextlib.contextmanager
def sleeping_threads(number):
    """Start threads that sleep; yield their ids; end them."""
    threading.stack_size(64 << 10)
    stop, ids = threading.Event(), []
    threads = [threading.Thread(target=lambda: (ids.append(threading.get_native_id()),
                                                stop.wait())) for _ in range(number)]
    for thread in threads:
        thread.start()
    while len(ids) < number:
        time.sleep(0.01)
    try:
        yield ids
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def by_thread(ids, known=None):
    """Return what to count of guests of VCPUS threads each.

    :param known: what this returned for the last sample: of a guest whose first
        thread is still the same, the others are taken to be
    """
    wanted = {}
    for first in range(0, len(ids), VCPUS):
        guest = ids[first:first + VCPUS]
        target = perf.thread(guest[0])
        if known and known[guest[0]][0] == target:
            wanted.update((tid, known[tid]) for tid in guest)
        else:
            wanted.update((tid, (perf.thread(tid), EVENTS)) for tid in guest)
    return wanted


def by_cgroup(paths, known=None):
    found = ((path, perf.cgroup(path, 0)) for path in paths)
    return {(path, cpu): (target._replace(cpu=cpu), EVENTS)
            for path, target in found for cpu in CPUS}


def sample_cost(list_targets, samples=5):
    """Return (descriptors, CPU seconds to open, median CPU seconds of a sample).

    A sample lists the targets anew, as it must to notice a guest that was replaced.
    """
    with contextlib.closing(counters.Counters()) as counting:
        began = time.process_time()
        wanted = list_targets()
        problems = counting.update(wanted)
        opened = time.process_time() - began
        if problems:
            raise problems[0]
        costs = []
        for _ in range(samples):
            began = time.process_time()
            wanted = list_targets(known=wanted)
            counting.update(wanted)
            counting.read()
            costs.append(time.process_time() - began)
        return len(counting), opened, statistics.median(costs)


def perf_stat_cost(paths, samples=5, interval_s=0.2):
    """Return perf's CPU seconds of a sample; None: perf can't."""
    names = ','.join(os.path.basename(path) for path in paths)
    process = subprocess.Popen(
        ['perf', 'stat', '-x', ',', '-I', str(int(interval_s * 1000)), '-a',
         '-e', ','.join(event.name for event in EVENTS), '--for-each-cgroup', names],
        stderr=subprocess.PIPE, text=True)
    stamps = []
    cpu = []
    while len(cpu) < samples + 2:
        line = process.stderr.readline()
        if not line:
            process.wait()
            return None
        stamp = line.split(',')[0].strip()
        if stamp not in stamps:
            stamps.append(stamp)
            with open('/proc/%d/schedstat' % process.pid, encoding='ascii') as file:
                cpu.append(int(file.read().split()[0]) / 1e9)
    process.send_signal(signal.SIGINT)
    process.communicate()
    return (cpu[-1] - cpu[1]) / (len(cpu) - 2)


def ping_pong(rounds):
    """Start a partner on the last CPU; return (its pid, a round trip's measure [s], its end)."""
    there_read, there = os.pipe()
    back_read, back = os.pipe()
    pid = os.fork()
    if not pid:
        os.sched_setaffinity(0, {CPUS[-1]})
        os.close(there)
        while os.read(there_read, 1):
            os.write(back, b'x')
        os._exit(0)
    os.close(there_read)
    os.close(back)

    def measure():
        began = time.perf_counter()
        for _ in range(rounds):
            os.write(there, b'x')
            os.read(back_read, 1)
        return (time.perf_counter() - began) / rounds

    def end():
        os.close(there)
        os.close(back_read)
        os.waitpid(pid, 0)

    return pid, measure, end


def join(path, pid):
    with open(os.path.join(path, 'cgroup.procs'), 'w', encoding='ascii') as file:
        file.write(str(pid))


def switch_cost(hierarchy, others, rounds, repeats):
    """Print a round trip uncounted, counted by thread and by control group, in turns."""
    os.sched_setaffinity(0, {CPUS[-1]})
    pid, measure, end = ping_pong(rounds)
    results = {'uncounted': [], 'by thread': [], 'by control group': []}
    try:
        with control_groups(hierarchy, 2 + others) as paths:
            join(paths[0], os.getpid())
            join(paths[1], pid)
            try:
                ways = {'uncounted': {}, 'by thread': by_thread((os.getpid(), pid)),
                        'by control group': by_cgroup(paths)}
                for _ in range(repeats):
                    for way, wanted in ways.items():
                        with contextlib.closing(counters.Counters()) as counting:
                            for problem in counting.update(wanted):
                                raise problem
                            results[way].append(measure())
            finally:
                join(hierarchy, os.getpid())
                join(hierarchy, pid)
    finally:
        end()
        os.sched_setaffinity(0, CPUS)
    base = statistics.median(results['uncounted'])
    print('\nround trip of two processes on one CPU, 4 events, %d other groups counted, '
          'median of %d:' % (others, repeats))
    for way, times in results.items():
        middle = statistics.median(times)
        print('  %-18s %7.2f us  %+6.1f %%' % (way, 1e6 * middle, 100 * (middle / base - 1)))


def main(argv=None):
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--guests', type=int, nargs='+', default=[10, 100, 200, 1000])
    parser.add_argument('--interval', type=float, default=5.0, help='seconds between samples')
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--others', type=int, default=50)
    args = parser.parse_args(argv)
    hierarchy = find_hierarchy()
    if hierarchy is None:
        print('skipped: no control group can be counted here', file=sys.stderr)
        return 1
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print('%d vCPUs a guest, 4 software events, %d CPUs, a sample every %g s; '
          'CPU milliseconds a sample (share of one core)' % (VCPUS, len(CPUS), args.interval))
    print('%7s  %-16s %11s %9s %10s %9s' % ('guests', 'way', 'descriptors', 'opening', 'sample',
                                            'core'))
    for number in args.guests:
        rows = []
        with sleeping_threads(number * VCPUS) as ids:
            rows.append(('by thread', *sample_cost(functools.partial(by_thread, ids))))
        with control_groups(hierarchy, number) as paths:
            rows.append(('by control group', *sample_cost(functools.partial(by_cgroup, paths))))
            if shutil.which('perf'):
                cost = perf_stat_cost(paths)
                if cost is not None:
                    rows.append(('perf stat', number * len(CPUS) * len(EVENTS), None, cost))
        for way, descriptors, opened, sample in rows:
            print('%7d  %-16s %11d %9s %7.2f ms %8.3f%%' % (
                number, way, descriptors, '' if opened is None else '%.0f ms' % (1e3 * opened),
                1e3 * sample, 100 * sample / args.interval), flush=True)
    print('A control group takes a descriptor for each event on each CPU, a thread one for '
          'each event:\n200 guests on 64 CPUs take %d by thread, %d by control group.'
          % (200 * VCPUS * len(EVENTS), 200 * 64 * len(EVENTS)))
    switch_cost(hierarchy, args.others, 3000, args.repeats)
    return 0


if __name__ == '__main__':
    sys.exit(main())
