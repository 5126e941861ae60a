# SPDX-License-Identifier: Apache-2.0
"""Start processes that look like guests, in control groups as libvirt makes them.

Four threads in each stand for vCPUs and three more for QEMU's others, which sleep. The thread of
each vCPU wakes up now and then, as an idle guest's timers cause it to; in some guests, two of them
exchange a byte as fast as they can. The package finds the guests through a root directory with
libvirt's status files.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import threading
import time

from nova_numa_pmc.record import Record
from tests.fixtures import domains

VCPUS, HELPERS = 4, 3


class Guest(Record):
    """A guest that runs.

    :param tids: ids of its vCPU threads
    :param group: the directory of its control group whose events can be counted
    """

    pid: int
    tids: tuple[int, ...]
    group: str


def mount_of(controller):
    """Return where a controller's hierarchy is mounted: v1's, else v2's, else None."""
    unified = None
    with open('/proc/self/mounts', encoding='utf-8') as file:
        for _, path, kind, options, *_ in map(str.split, file):
            if kind == 'cgroup' and controller in options.split(','):
                return path
            if kind == 'cgroup2':
                unified = unified or path
    return unified


@contextlib.contextmanager
def control_groups(names):
    """Make groups that count memory and events, and grant CPUs.

    Yield {name: its directories, events first}.
    """
    found = map(mount_of, ('perf_event', 'memory', 'cpuset'))
    mounts = dict.fromkeys(path for path in found if path)
    bases = [os.path.join(path, 'numa-pmc-bench-%d' % os.getpid()) for path in mounts]
    directories = []
    try:
        for base in bases:
            os.mkdir(base)
            directories.append(base)
            for controller in ('memory', 'cpuset'):
                with contextlib.suppress(OSError):  # v2 only, and only where it is enabled
                    _write(os.path.join(base, 'cgroup.subtree_control'), '+' + controller)
            with contextlib.suppress(OSError):  # v1 only: no process may be put into an empty set
                for name in ('cpuset.cpus', 'cpuset.mems'):
                    with open(os.path.join(base, '..', name), encoding='ascii') as file:
                        _write(os.path.join(base, name), file.read())
                _write(os.path.join(base, 'cgroup.clone_children'), '1')
            for name in names:
                os.mkdir(os.path.join(base, name))
                directories.append(os.path.join(base, name))
        yield {name: [os.path.join(base, name) for base in bases] for name in names}
    finally:
        for path in reversed(directories):
            with contextlib.suppress(OSError):
                os.rmdir(path)


@contextlib.contextmanager
def running(number, switching, nap_s):
    """Start guests, yield a list of :class:`Guest`, and end them.

    :param switching: number of guests in which two threads switch to and fro
    :param nap_s: time that a thread sleeps between two moments of running
    """
    names = ['qemu-%d-bench.libvirt-qemu' % at for at in range(number)]
    ready, tell = os.pipe()
    end, alive = os.pipe()
    gc.freeze()  # a collection in a guest would copy the pages that it shares with this process
    with control_groups(names) as groups:
        pids = {}
        try:
            for at, name in enumerate(names):
                pid = os.fork()
                if not pid:
                    os.close(alive)
                    _run_as_guest(groups[name], tell, end, at < switching, nap_s)
                pids[pid] = name
            lines = os.fdopen(os.dup(ready))
            with lines:
                pid_lists = (tuple(map(int, lines.readline().split())) for _ in names)
                yield [Guest(pid, tuple(tids), groups[pids[pid]][0]) for pid, *tids in pid_lists]
        finally:
            os.close(alive)  # at which they end
            for pid in pids:
                os.waitpid(pid, 0)
            for fd in (ready, tell, end):
                os.close(fd)


def _run_as_guest(groups, tell, end, switches, nap_s):
    """Act as a guest until the other side of ``end`` is closed; do not return."""
    try:
        for path in groups:
            _write(os.path.join(path, 'cgroup.procs'), '0')
        threading.stack_size(64 << 10)
        tids = []
        loops = [_nap] * VCPUS
        if switches:
            here, there = os.pipe(), os.pipe()
            os.write(here[1], b'x')
            loops[0] = lambda _: _forward_bytes(here[0], there[1])
            loops[1] = lambda _: _forward_bytes(there[0], here[1])
        for loop in loops:
            _thread.start_new_thread(_start, (tids, loop, nap_s))
        while len(tids) < VCPUS:
            time.sleep(0.01)
        for _ in range(HELPERS):
            _thread.start_new_thread(time.sleep, (1e6,))
        os.write(tell, ('%d %s\n' % (os.getpid(), ' '.join(map(str, tids)))).encode())
        os.read(end, 1)
    finally:
        os._exit(0)


def _start(tids, loop, nap_s):
    tids.append(threading.get_native_id())
    loop(nap_s)


def _nap(nap_s):
    while True:
        time.sleep(nap_s)


def _forward_bytes(source, sink):
    while True:
        os.write(sink, os.read(source, 1))


def make_root(directory, guests):
    """Make a root with this host's proc and sys, and the guests' status files."""
    for name in ('proc', 'sys'):
        os.symlink('/' + name, os.path.join(directory, name))
    files = os.path.join(directory, 'run/libvirt/qemu')
    os.makedirs(files)
    for at, guest in enumerate(guests):
        uuid = '00000000-0000-4000-8000-%012x' % (at + 1)
        xml = domains.status(domains.domain('bench%d' % at, uuid), guest.pid)
        head, _, rest = xml.partition(b'<vcpus>')
        vcpus = ''.join("<vcpu id='%d' pid='%s'/>" % pair for pair in enumerate(guest.tids))
        with open(os.path.join(files, 'bench%d.xml' % at), 'wb') as file:
            file.write(head + b'<vcpus>' + vcpus.encode() + rest[rest.index(b'</vcpus>') :])


def _write(path, text):
    with open(path, 'w', encoding='ascii') as file:
        file.write(text)
