# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of sampling: CPU time and descriptors.

Four events are counted on each guest (of 4 vCPUs) and on each of 64 CPUs: as counters alone by
vCPU thread; in a whole sample (status files, threads' times, memory by node, counters, and what
follows from them); and by ``perf stat`` on the guests' control groups, the same CPUs and events,
in groups of 4 and at the same rate, one after the other. Machines with fewer CPUs open the
CPUs' events several times on each, in all cases. Threads of guests wake up between two samples; in
some guests, two of them switch all the time.

The events are the kernel's own: switching those costs less than switching hardware registers, and
on 64 real CPUs, more of them are read through an interrupt of another CPU. The figures are lower
bounds. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from nova_numa_pmc import exceptions
from nova_numa_pmc.agent import sampling
from nova_numa_pmc.conf import counters as counters_conf
from nova_numa_pmc.core.sample_records import COUNTED
from nova_numa_pmc.host.perf import counters, events, perf_event
from tests.bench import perf_stat, running_guests

EVENTS = tuple(
    events.Event(role, name, 'software', 1, code)
    for name, role, code in (
        ('page-faults', 'local_dram', 2),
        ('cpu-migrations', 'remote_dram', 4),
        ('cpu-clock', 'cycles', 0),
        ('context-switches', 'instructions', 3),
    )
)
CPUS = tuple(sorted(os.sched_getaffinity(0)))
WANTED_CPUS = 64
BY_THREAD, WHOLE, PERF = 'by thread', 'whole sample', 'perf stat'
LOWER_BOUND = (
    'Software events: a lower bound. Hardware counters cost more to switch, and on '
    '%d real CPUs\nmore of them are read through an interrupt.' % WANTED_CPUS
)


def perf_events():
    """Return the events as perf expects them, as one group."""
    return '{%s}' % ','.join(event.name for event in EVENTS)


class Counting:
    """Counters alone on guests and CPUs, read and subtracted."""

    def __init__(self, wanted, copies):
        """Count {guest: {key: (target, events)}}, and all CPUs this number of times."""
        self._wanted = wanted
        self._cpus = {
            cpu: {copy: (perf_event.on_cpu(cpu), EVENTS) for copy in range(copies)} for cpu in CPUS
        }
        self._owners = counters.OwnerCounters(), counters.OwnerCounters()

    def sample(self):
        """Open what is not open, read, and subtract.

        :raises CounterError, SourceUnavailable: something cannot be counted
        """
        for owners, wanted, idle in zip(self._owners, (self._wanted, self._cpus), (True, False)):
            _, problems = owners.sample(wanted, idle_is_zero=idle)
            if problems:
                raise exceptions.CounterError(problems[0])

    def close(self):
        """Close all counters."""
        for owners in self._owners:
            owners.close()


def by_thread(guests):
    """Return what to count for guests by thread."""
    return {
        guest.pid: {tid: (perf_event.thread(tid), EVENTS) for tid in guest.tids}
        for guest in guests
    }


class WholeSample:
    """The agent's work at each tick, plus the CPUs that this host lacks."""

    def __init__(self, root, copies, interval_s):
        self._sampler = sampling.Sampler(
            counters_conf.CounterOptions(
                events=tuple(
                    (event.role, 'software/config=%#x/' % event.config) for event in EVENTS
                )
            ),
            root,
        )
        self._more_cpus = Counting({}, copies - 1)
        self._interval_ns, self._ticks = int(interval_s * 1e9), 0

    def sample(self):
        """Take a sample, as if the interval had passed."""
        sample = self._sampler.sample(self._ticks * self._interval_ns)
        self._ticks += 1
        if self._ticks > 1 and any(guest.basis != COUNTED for guest in sample.guests):
            raise exceptions.CounterError('; '.join(sample.problems) or 'guests are not counted')
        self._more_cpus.sample()

    def close(self):
        """Close all counters."""
        self._sampler.close()
        self._more_cpus.close()


def timed(function):
    """Return the CPU seconds that a call takes."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def measure(number, options, copies):
    """Return {way: {descriptors, open_s, sample_s}} for a number of guests; ways may be absent."""
    print_progress('%d guests' % number)
    rounds = {}
    with (
        running_guests.running(number, options.switching, 0.8 * options.gap) as guests,
        tempfile.TemporaryDirectory() as directory,
    ):
        groups = [guest.group for guest in guests]
        running_guests.make_root(directory, guests)
        ways: dict[str, Callable[[], Any]] = {
            BY_THREAD: lambda: Counting(by_thread(guests), copies),
            WHOLE: lambda: WholeSample(directory, copies, options.interval),
        }
        for way, make in ways.items():
            try:
                with contextlib.closing(make()) as one:
                    rounds[way] = rounds_of(one, options)
            except (exceptions.CounterError, exceptions.SourceUnavailable) as error:
                print_progress('%d guests, %s: not measured: %s' % (number, way, error))
        if options.perf:
            rounds[PERF] = rounds_of_perf(
                [
                    ['-a', '-e', perf_events(), '--for-each-cgroup', relative_paths(groups)],
                    ['-a', '-A', '-e', ','.join([perf_events()] * copies)],
                ],
                options,
            )
    return rounds


def rounds_of(one, options):
    """Return the cost of one of our ways.

    It is a mean, because memory is read at every third sample.
    """
    before = descriptors()
    open_s = timed(one.sample)
    costs = []
    for _ in range(options.rounds):
        time.sleep(options.gap)
        costs.append(timed(one.sample))
    return {
        'descriptors': descriptors() - before,
        'open_s': open_s,
        'sample_s': statistics.mean(costs),
    }


def rounds_of_perf(commands, options):
    """Return the cost of perf."""
    with perf_stat.running(commands, options.gap) as beside:
        before = beside.mark()
        time.sleep(options.rounds * options.gap)
        return {
            'descriptors': beside.descriptors(),
            'open_s': None,
            'sample_s': perf_stat.sample_s(before, beside.mark()),
        }


def descriptors():
    """Return the number of descriptors that this process has open."""
    return len(os.listdir('/proc/self/fd'))


def relative_paths(directories):
    """Return control groups in the form that perf expects."""
    mount = running_guests.mount_of('perf_event')
    return ','.join(os.path.relpath(path, mount) for path in directories)


def print_progress(text):
    """Print the progress."""
    print(text, file=sys.stderr, flush=True)


def print_rows(number, by_way, interval_s):
    """Print the rows for this number of guests."""
    for way, one in by_way.items():
        print(
            '%7d  %-17s %11d %9s %9.2f ms %8.3f %%'
            % (
                number,
                way,
                one['descriptors'],
                '' if one['open_s'] is None else '%.0f ms' % (1e3 * one['open_s']),
                1e3 * one['sample_s'],
                100 * one['sample_s'] / interval_s,
            ),
            flush=True,
        )


def summary(options, table, copies):
    """Return the printed results as JSON."""
    report = {
        'machine': cpu_name(),
        'kernel': platform.release(),
        'cpus': len(CPUS),
        'load_average': os.getloadavg()[0],
        'descriptors_max': resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        'interval_s': options.interval,
        'gap_s': options.gap,
        'rounds': options.rounds,
        'cpus_counted': copies * len(CPUS),
        'events': [event.name for event in EVENTS],
        'software_events_lower_bound': True,
    }
    for key, way in (('', WHOLE), ('by_thread_', BY_THREAD), ('perf_stat_', PERF)):
        one = table.get(200, {}).get(way)
        report[key + 'core_fraction_200_guests'] = one and one['sample_s'] / options.interval
    return {**report, 'guests': table}


def cpu_name():
    """Return the CPU's name."""
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        names = [line.partition(':')[2].strip() for line in file if line.startswith('model name')]
    return names[0] if names else platform.machine()


def raise_descriptor_limit(number):
    """Raise the limit of descriptors as far as is needed or allowed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, hard),) * 2)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def parse(argv):
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--guests', type=int, nargs='+', default=[10, 100, 200, 1000])
    parser.add_argument(
        '--interval',
        type=float,
        default=5.0,
        help='seconds between samples for which the share of a core is printed',
    )
    parser.add_argument(
        '--gap',
        type=float,
        default=0.5,
        help='actual seconds between samples, shorter to save time',
    )
    parser.add_argument(
        '--rounds', type=int, default=9, help='number of samples, preferably a multiple of 3'
    )
    parser.add_argument(
        '--switching', type=int, default=4, help='guests in which two threads switch all the time'
    )
    parser.add_argument(
        '--no-perf',
        dest='perf',
        action='store_false',
        help='do not use perf even if it is installed',
    )
    options = parser.parse_args(argv)
    options.perf = options.perf and perf_stat.is_available()
    return options


def main(argv=None):
    """Print the tables."""
    options = parse(argv)
    try:
        with running_guests.control_groups(['probe']):
            perf_event.EventGroup(EVENTS, perf_event.on_cpu(CPUS[0])).close()
    except (OSError, exceptions.CounterError) as error:
        print('skipped: no guest can be counted: %s' % error, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that groups are removed
    raise_descriptor_limit(max(options.guests) * 64 + 4096)
    copies = -(-WANTED_CPUS // len(CPUS))
    print(
        '%s, %d CPUs, Linux %s; load %.1f\n%d vCPUs a guest, 4 software events; %d CPUs '
        'counted: each %d times\nCPU time of a sample, and its share of a core at one every '
        '%g s\n\n%7s  %-17s %11s %9s %12s %10s'
        % (
            cpu_name(),
            len(CPUS),
            platform.release(),
            os.getloadavg()[0],
            running_guests.VCPUS,
            copies * len(CPUS),
            copies,
            options.interval,
            'guests',
            'way',
            'descriptors',
            'opening',
            'sample',
            'core',
        ),
        flush=True,
    )
    table = {}
    for number in options.guests:
        table[number] = measure(number, options, copies)
        print_rows(number, table[number], options.interval)
    print('\n%s\n%s' % (LOWER_BOUND, json.dumps(summary(options, table, copies))))
    return 0


if __name__ == '__main__':
    sys.exit(main())
