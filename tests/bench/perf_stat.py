# SPDX-License-Identifier: Apache-2.0
"""Run ``perf stat -I`` to compare a measurement and its cost with."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any

START_S = 60


def is_available():
    """Return whether perf can be run; Debian's is a wrapper that may lack the program."""
    return (
        bool(shutil.which('perf'))
        and not subprocess.run(
            ['perf', 'stat', '-e', 'cpu-clock', 'true'], capture_output=True, check=False
        ).returncode
    )


def run_ns(pid):
    """Return the run time of a process's first thread [ns]."""
    with open('/proc/%d/schedstat' % pid, encoding='ascii') as file:
        return int(file.read().split()[0])


class PerfStat:
    """One or more ``perf stat`` processes, which together count what is to be compared.

    :ivar processes: each with its output file
    """

    def __init__(self, commands, interval_s, directory):
        self.processes: list[tuple[Any, str]] = []
        for at, arguments in enumerate(commands):
            path = os.path.join(directory, 'perf-stat-%d' % at)
            command = f'perf stat -x , -I {1000 * interval_s:.0f} -o {path}'.split() + arguments
            quiet = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
            self.processes.append((process, path))

    def wait(self):
        """Wait for the first reading of each process.

        :raises RuntimeError: there is none
        """
        until = time.monotonic() + START_S
        for process, path in self.processes:
            while not _stamps(path):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError('no reading of: %.100s' % ' '.join(process.args))
                time.sleep(0.02)

    def mark(self):
        """Return [(CPU ns so far, readings so far)], each between two readings."""
        marks = []
        for process, path in self.processes:
            size = -1
            while size != os.stat(path).st_size:
                size = os.stat(path).st_size
                time.sleep(0.05)
            marks.append((run_ns(process.pid), _stamps(path)))
        return marks

    def descriptors(self):
        """Return how many descriptors the processes have open."""
        return sum(len(os.listdir('/proc/%d/fd' % process.pid)) for process, _ in self.processes)

    def stop(self):
        """Stop the processes."""
        for process, _ in self.processes:
            process.kill()
            process.wait()


def _stamps(path):
    try:
        with open(path, encoding='utf-8') as file:
            return len({line.split(',', 1)[0] for line in file if ',' in line})
    except FileNotFoundError:
        return 0


def sample_s(before, after):
    """Return the CPU seconds of a reading, from two marks and for all processes together."""
    return sum(
        (new[0] - old[0]) / 1e9 / max(1, new[1] - old[1]) for old, new in zip(before, after)
    )


@contextlib.contextmanager
def running(commands, interval_s):
    """Run ``perf stat`` with each list of arguments; yield a counting :class:`PerfStat`."""
    with tempfile.TemporaryDirectory() as directory:
        perf = PerfStat(commands, interval_s, directory)
        try:
            perf.wait()
            yield perf
        finally:
            perf.stop()
