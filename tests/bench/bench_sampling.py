# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of sampling: CPU time and descriptors.

Four events are counted on each guest (of 4 vCPUs) and on each of 64 CPUs: as counters alone by
vCPU thread; in a whole sample (status files, threads' times, memory by node, counters, and what
follows from them); and by ``perf stat`` on the guests' control groups, the same CPUs and events,
in groups of 4 and at the same rate, one after the other. The share of a core is that at the
agent's rate, which depends on the number of guests. Machines with fewer CPUs open the
CPUs' events several times on each, in all cases. Threads of guests wake up between two samples; in
some guests, two of them switch all the time.

The events are the kernel's own: switching those costs less than switching hardware registers, and
on 64 real CPUs, more of them are read through an interrupt of another CPU. The figures are lower
bounds. The last line is JSON.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import resource
import signal
import statistics
import sys
import tempfile
import time

from nova_numa_pmc import exceptions
from nova_numa_pmc.agent import agent, sampling
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core.measurements import COUNTED
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
#: The events as perf expects them, as one group.
PERF_EVENTS = '{%s}' % ','.join(event.name for event in EVENTS)
CPUS = tuple(sorted(os.sched_getaffinity(0)))
WANTED_CPUS = 64
#: How often each CPU is counted.
COPIES = -(-WANTED_CPUS // len(CPUS))
#: Seconds between two samples here, to save time, and number of samples, a multiple of 3, because
#: memory is read at every third at the default interval.
GAP_S, ROUNDS = 0.5, 9
#: Signals to end that have arrived.
SIGNALS = []
#: Guests in which two threads switch all the time.
SWITCHING = 4


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


class WholeSample:
    """The agent's work at each tick, plus the CPUs that this host lacks."""

    def __init__(self, root, interval_s):
        roles = tuple((event.role, 'software/config=%#x/' % event.config) for event in EVENTS)
        self._sampler = sampling.Sampler(opts.CounterOptions(events=roles), root)
        self._more_cpus = Counting({}, COPIES - 1)
        self._ticks, self._interval_s = 0, interval_s

    def sample(self):
        """Take a sample, as if the interval had passed."""
        sample = self._sampler.sample(self._ticks * int(self._interval_s * 1e9))
        self._ticks += 1
        if self._ticks > 1 and any(guest.basis != COUNTED for guest in sample.guests):
            raise exceptions.CounterError('; '.join(sample.problems) or 'guests are not counted')
        self._more_cpus.sample()

    def close(self):
        """Close all counters."""
        self._sampler.close()
        self._more_cpus.close()


def measure(number):
    """Return {way: {descriptors, open_s, sample_s}} for a number of guests."""
    print('%d guests' % number, file=sys.stderr, flush=True)
    with (
        running_guests.running(number, SWITCHING, 0.8 * GAP_S) as guests,
        tempfile.TemporaryDirectory() as directory,
    ):
        running_guests.make_root(directory, guests)
        by_thread = {
            guest.pid: {tid: (perf_event.thread(tid), EVENTS) for tid in guest.tids}
            for guest in guests
        }
        rounds = {}
        with contextlib.closing(Counting(by_thread, COPIES)) as counting:
            rounds['by thread'] = rounds_of(counting)
        with contextlib.closing(WholeSample(directory, interval_s(number))) as whole:
            rounds['whole sample'] = rounds_of(whole)
        if perf_stat.is_available():
            rounds['perf stat'] = rounds_of_perf([guest.group for guest in guests])
    return rounds


def interval_s(number):
    """Return the time between two of the agent's samples with this many guests [s]."""
    least_s = min(agent.INTERVAL_MAX_S, number * agent.INTERVAL_PER_GUEST_S)
    tick_s = max(opts.CounterOptions().interval_s, least_s)
    sample_s = min(agent.SAMPLE_MAX_S, number * agent.SAMPLE_PER_GUEST_S)
    return tick_s * max(1, math.ceil(sample_s / tick_s))


def timed(function):
    """Return the CPU seconds that a call takes."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def rounds_of(one):
    """Return the cost of one of our ways."""
    before = descriptors()
    open_s = timed(one.sample)
    costs = []
    for _ in range(ROUNDS):
        time.sleep(GAP_S)
        end_if_told()
        costs.append(timed(one.sample))
    sample_s = statistics.mean(costs)
    return {'descriptors': descriptors() - before, 'open_s': open_s, 'sample_s': sample_s}


def rounds_of_perf(groups):
    """Return the cost of perf on these control groups and all CPUs."""
    mount = running_guests.mount_of('perf_event')
    paths = ','.join(os.path.relpath(path, mount) for path in groups)
    commands = [
        ['-a', '-e', PERF_EVENTS, '--for-each-cgroup', paths],
        ['-a', '-A', '-e', ','.join([PERF_EVENTS] * COPIES)],
    ]
    end_if_told()
    with perf_stat.running(commands, GAP_S) as beside:
        before = beside.mark()
        time.sleep(ROUNDS * GAP_S)
        sample_s = perf_stat.sample_s(before, beside.mark())
        return {'descriptors': beside.descriptors(), 'open_s': 0.0, 'sample_s': sample_s}


def end_if_told():
    """End after SIGTERM, whose handler must not raise: groups and guests are then removed."""
    if SIGNALS:
        sys.exit(1)


def descriptors():
    """Return the number of descriptors that this process has open."""
    return len(os.listdir('/proc/self/fd'))


def raise_descriptor_limit(number):
    """Raise the limit of descriptors as far as is needed or allowed."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, hard),) * 2)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--guests', type=int, nargs='+', default=[10, 100, 200, 1000])
    numbers = parser.parse_args().guests
    try:
        with running_guests.control_groups(['probe']):
            perf_event.EventGroup(EVENTS, perf_event.on_cpu(CPUS[0])).close()
    except (OSError, exceptions.CounterError) as error:
        print('skipped: no guest can be counted: %s' % error, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, _: SIGNALS.append(number))
    raise_descriptor_limit(max(numbers) * 64 + 4096)
    print('%d CPUs, each counted %d times, load %.1f' % (len(CPUS), COPIES, os.getloadavg()[0]))
    print("CPU time of a sample, and its share of a core at the agent's rate\n")
    print('%7s  %-13s %11s %10s %11s %9s' % ('guests', 'way', 'descriptors', 'open', 'sample', ''))
    table = {}
    for number in numbers:
        table[number] = measure(number)
        for way, one in table[number].items():
            cost_ms, share = 1e3 * one['sample_s'], 100 * one['sample_s'] / interval_s(number)
            print(
                '%7d  %-13s %11d %7.0f ms %8.2f ms %7.3f %%'
                % (number, way, one['descriptors'], 1e3 * one['open_s'], cost_ms, share),
                flush=True,
            )
    figures = {'kernel': platform.release(), 'cpus_counted': COPIES * len(CPUS), 'guests': table}
    for way, key in (
        ('whole sample', ''),
        ('by thread', 'by_thread_'),
        ('perf stat', 'perf_stat_'),
    ):
        one = table.get(200, {}).get(way)
        figures[key + 'core_fraction_200_guests'] = one and one['sample_s'] / interval_s(200)
    print(json.dumps(figures))
    return 0


if __name__ == '__main__':
    sys.exit(main())
