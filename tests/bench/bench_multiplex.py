# SPDX-License-Identifier: Apache-2.0
"""Measure the accuracy lost by counting in turns, with this kernel's software events.

Each event is counted twice over the same window of the same child: all the time (x_ws, without
switching) and in one of several sets that take turns (x_s, scaled). The output is the mean
relative error, sum(|x_ws - x_s| / x_ws) / n, as in CERN openlab's and eBay's decks, and the
worst. Software events never run out of counters, so this shows only the error of taking turns, not
the kernel's cost of switching hardware counters. With ``--roles``, the machine's own events are
counted: that requires as many counters as there are events, plus --counters.
"""

import argparse
import contextlib
import mmap
import os
import signal
import sys
import time

from nova_numa_pmc import exceptions
from nova_numa_pmc.core import rates
from nova_numa_pmc.host.perf import events, perf_event, pfm
from tests.bench import rotation

SOFTWARE = tuple(
    events.Event(name, name, 'software', 1, code)
    for name, code in (
        ('task-clock', 1),
        ('page-faults', 2),
        ('context-switches', 3),
        ('minor-faults', 5),
    )
)


def steady():
    """Cause page faults and yield, at a constant pace."""
    memory = mmap.mmap(-1, 256 * mmap.PAGESIZE)
    while True:
        memory.madvise(mmap.MADV_DONTNEED)
        for page in range(256):
            memory[page * mmap.PAGESIZE] = 1
        time.sleep(0.0005)


def bursty():
    """Do the same in bursts of a tenth of a second, with computing in between."""
    memory = mmap.mmap(-1, 256 * mmap.PAGESIZE)
    while True:
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            memory.madvise(mmap.MADV_DONTNEED)
            for page in range(256):
                memory[page * mmap.PAGESIZE] = 1
            time.sleep(0.0005)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass


def measure(chosen, work, slice_s, window_s, counters):
    """Return event → (x_ws, x_s) of one window."""
    pid = os.fork()
    if not pid:
        work()
    with contextlib.ExitStack() as stack:
        stack.callback(os.waitpid, pid, 0)
        stack.callback(os.kill, pid, signal.SIGKILL)
        target = perf_event.thread(pid)
        dedicated = stack.enter_context(contextlib.closing(perf_event.EventGroup(chosen, target)))
        rotating = stack.enter_context(
            contextlib.closing(rotation.Rotation(rotation.plan_sets(chosen, counters), target))
        )
        before = dedicated.read()
        end = time.monotonic() + window_s
        while time.monotonic() < end:
            rotating.step()
            time.sleep(slice_s)
        rotating.stop()
        after = dedicated.read()
        switched = rotating.read(after[0].enabled_ns - before[0].enabled_ns)
    nothing = rates.CounterReading(0, 0, 0)
    return {
        event: (rates.difference(first, last), rates.difference(nothing, switched[event]))
        for event, first, last in zip(chosen, before, after)
    }


def errors(pairs):
    """Return |x_ws - x_s| / x_ws for each event that happened."""
    return {
        event.name: abs(alone.value - turned.value) / alone.value
        for event, (alone, turned) in pairs.items()
        if alone and turned and alone.value
    }


def main(argv=None):
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--window', type=float, default=2.0, help='seconds per run')
    parser.add_argument('--counters', type=int, default=1, help='events counted at a time')
    parser.add_argument('--roles', help="count these of the machine's roles, comma-separated")
    args = parser.parse_args(argv)
    chosen = SOFTWARE
    if args.roles:
        chosen = tuple(
            event
            for event in events.select_events(libpfm=pfm.load()).events
            if event.role in args.roles.split(',') and event.cpus is None
        )
    if not chosen:
        print('skipped: this machine has none of these', file=sys.stderr)
        return 1
    print(
        '%s; %d at a time, %.1f s a run'
        % (', '.join(event.name for event in chosen), args.counters, args.window)
    )
    print('%-8s %8s %10s %10s  %s' % ('work', 'slice', 'mean', 'worst', 'worst event'))
    try:
        for work in (steady, bursty):
            for slice_s in (0.002, 0.01, 0.05):
                errors_ = errors(measure(chosen, work, slice_s, args.window, args.counters))
                worst = max(errors_, key=errors_.get)
                print(
                    '%-8s %5.0f ms %9.2f%% %9.2f%%  %s'
                    % (
                        work.__name__,
                        slice_s * 1e3,
                        100 * sum(errors_.values()) / len(errors_),
                        100 * errors_[worst],
                        worst,
                    )
                )
    except exceptions.CounterError as error:
        print('skipped: %s' % error, file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
