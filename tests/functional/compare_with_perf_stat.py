# SPDX-License-Identifier: Apache-2.0
"""Count the same window as ``perf stat`` does, per thread and per CPU.

The events of local and remote DRAM are compared if the machine has them, otherwise software
events: no more, because both sides count at the same time. perf excludes guest mode unless told
otherwise, hence ``:GH``.
"""

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import sys

from nova_numa_pmc import exceptions
from nova_numa_pmc.core import rates
from nova_numa_pmc.host.perf import events, perf_event

SOFTWARE = tuple(
    events.Event(name, name, 'software', 1, code)
    for name, code in (('page-faults', 2), ('context-switches', 3))
)

#: Work of a window, and the largest relative difference.
ROUNDS, APART_MAX = 60, 0.01


def perf_name(event):
    """Return the event in perf's syntax."""
    if event.pmu == 'software':
        return event.name
    return '%s/config=%#x,config1=%#x/GH' % (event.pmu, event.config, event.config1)


def choose_events():
    """Return the machine's events for DRAM, or software events if it has none."""
    supported = [
        event
        for event in events.select_events().events
        if event.role in ('local_dram', 'remote_dram') and event.cpus is None
    ]
    return tuple(supported) or SOFTWARE


class Worker:
    """A process on one CPU that faults in pages and yields when told to."""

    def __init__(self, cpu):
        self._read, go = os.pipe()
        done, self._write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(go)
            os.close(done)
            os.sched_setaffinity(0, {cpu})
            with contextlib.suppress(BaseException):
                while os.read(self._read, 1):
                    self._work()
                    os.write(self._write, b'd')
            os._exit(0)
        os.close(self._read)
        os.close(self._write)
        self._go, self._done = go, done
        self.run()

    @staticmethod
    def _work():
        with mmap.mmap(-1, 1024 * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for _ in range(ROUNDS):
                memory.madvise(mmap.MADV_DONTNEED)
                for page in range(1024):
                    memory[page * mmap.PAGESIZE] = 1
                signal.sigtimedwait((), 0.0001)

    def run(self):
        os.write(self._go, b'g')
        os.read(self._done, 1)

    def end(self):
        os.close(self._go)
        os.close(self._done)
        os.waitpid(self.pid, 0)


class PerfStat:
    """A ``perf stat`` that counts between two calls."""

    def __init__(self, chosen, arguments):
        control_read, self._control = os.pipe()
        self._ack, ack_write = os.pipe()
        self._process = subprocess.Popen(
            f'perf stat -x , -D -1 --control fd:{control_read},{ack_write}'.split()
            + [word for event in chosen for word in ('-e', perf_name(event))]
            + arguments,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(control_read, ack_write),
        )
        os.close(control_read)
        os.close(ack_write)

    def send_command(self, command):
        """Send a command and wait until perf has executed it."""
        os.write(self._control, command.encode() + b'\n')
        if not os.read(self._ack, 16):
            raise RuntimeError('perf stat ended: %s' % self._process.communicate()[1])

    def stop(self):
        """End perf and return its values in the order of the events."""
        self._process.send_signal(signal.SIGINT)
        text = self._process.communicate()[1]
        os.close(self._control)
        os.close(self._ack)
        lines = [line.split(',') for line in text.splitlines() if line.count(',') > 4]
        return [float(fields[0]) for fields in lines]


def compare(chosen, target, arguments, worker):
    """Return (our minimum, our maximum, perf's count) of each event in one window of work.

    perf starts between the first two readings and stops between the last two, so that
    whatever else runs on a CPU at that time lies between the minimum and the maximum.
    """
    groups, missing = perf_event.open_groups(chosen, target)
    if missing:
        raise missing[0][1]

    def read():
        return [count for group in groups for count in group.read()]

    with contextlib.ExitStack() as stack:
        for group in groups:
            stack.callback(group.close)
        referee = PerfStat(chosen, arguments)
        outer_before = read()
        referee.send_command('enable')
        inner_before = read()
        worker.run()
        inner_after = read()
        referee.send_command('disable')
        outer_after = read()
    least, most = (
        [delta(*pair) for pair in zip(before, after)]
        for before, after in ((inner_before, inner_after), (outer_before, outer_after))
    )
    return list(zip(least, most, referee.stop()))


def delta(before, after):
    """Return what a counter counted between two readings; None: unknown."""
    grown = rates.growth(before, after)
    return None if grown is None else rates.scaled(*grown)


def scopes(worker, cpu):
    """Yield (name, target, perf's arguments) of each scope that this machine has."""
    pid = ['-p', str(worker.pid)]
    yield 'thread', perf_event.thread(worker.pid), pid
    yield 'cpu', perf_event.on_cpu(cpu), ['-a', '-C', str(cpu)]


def main():
    """Print each pair and its difference; return 0 if all are within the limit."""
    if not shutil.which('perf'):
        print('skipped: perf is not installed')
        return 77
    chosen, cpu, worst = choose_events(), max(os.sched_getaffinity(0)), 0.0
    worker = Worker(cpu)
    try:
        for scope, target, arguments in scopes(worker, cpu):
            pairs = compare(chosen, target, arguments, worker)
            for event, (least, most, theirs) in zip(chosen, pairs):
                if least is None or most is None:
                    print('%-7s %-34s not counted in the window' % (scope, perf_name(event)))
                    worst = 1.0
                    continue
                apart = max(least.value - theirs, theirs - most.value, 0.0) / max(theirs, 1.0)
                worst = max(worst, apart)
                print(
                    '%-7s %-34s ours %12.0f to %12.0f (%3.0f %% seen) perf %12.0f apart %.3f %%'
                    % (
                        scope,
                        perf_name(event),
                        least.value,
                        most.value,
                        100 * most.share,
                        theirs,
                        100 * apart,
                    )
                )
    except exceptions.CounterRefused as error:
        print('skipped: %s' % error)
        return 77
    finally:
        worker.end()
    return int(worst > APART_MAX)


if __name__ == '__main__':
    sys.exit(main())
