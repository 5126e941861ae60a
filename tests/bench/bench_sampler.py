# SPDX-License-Identifier: Apache-2.0
"""Measure what a whole sample costs: guests, threads, memory, counters, and what follows.

Each guest is a process with four threads that sleep, in a control group as libvirt makes it,
with a status file; four software events are counted on each thread and CPU. Software events
cost less to switch than hardware's, and reading is the same: the CPU time of a sample is that
of the sampler alone. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

from nova_numa_pmc import collect, counting
from tests.fixtures import domains

VCPUS = 4
INTERVAL_NS = 5 * 10**9
EVENTS = (('local_dram', 'software/config=0x2/'), ('remote_dram', 'software/config=0x4/'),
          ('cycles', 'software/config=0x0/'), ('instructions', 'software/config=0x3/'))


def guest(ready):
    """Be a guest: start threads, tell their ids, sleep."""
    tids = []
    for _ in range(VCPUS):
        threading.Thread(target=lambda: (tids.append(threading.get_native_id()),
                                         time.sleep(1e6)),
                         daemon=True).start()
    while len(tids) < VCPUS:
        time.sleep(0.01)
    os.write(ready, ('%d %s\n' % (os.getpid(), ' '.join(map(str, tids)))).encode())
    time.sleep(1e6)


@contextlib.contextmanager
def guests(number):
    """Start guests; yield [(pid, tids)]; end them."""
    read, write = os.pipe()
    pids = []
    try:
        for _ in range(number):
            pid = os.fork()
            if not pid:
                guest(write)
            pids.append(pid)
        with os.fdopen(read) as lines:
            yield [(pid, tids) for pid, *tids in (lines.readline().split() for _ in pids)]
    finally:
        os.close(write)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def hierarchies():
    """Return the mounts to make groups in: one that counts memory, and v2's beside a v1's."""
    memory = [path for path in ('/sys/fs/cgroup/memory', '/sys/fs/cgroup')
              if os.path.exists(path + '/memory.numa_stat')][:1]
    return [path for path in (*memory, '/sys/fs/cgroup/unified', '/sys/fs/cgroup/perf_event')
            if os.access(path + '/cgroup.procs', os.W_OK)]


@contextlib.contextmanager
def control_groups(running):
    """Put guests into groups that count their memory and events; tell whether there are any."""
    bases = [os.path.join(path, 'numa-pmc-bench-%d' % os.getpid()) for path in hierarchies()]
    paths = list(bases)
    try:
        for base in bases:
            os.mkdir(base)
            for at, (pid, _) in enumerate(running):
                paths.append('%s/qemu-%d-bench.libvirt-qemu' % (base, at))
                os.mkdir(paths[-1])
                join(paths[-1], pid)
        yield bool(bases)
    finally:
        for base in bases:
            for pid, _ in running:
                join(os.path.dirname(base), pid)
        for path in reversed(paths):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def join(path, pid):
    with open(path + '/cgroup.procs', 'w', encoding='ascii') as file:
        file.write(pid)


def root_of(directory, running):
    """Make a root with this host's proc and sys, and the guests' status files."""
    for name in ('proc', 'sys'):
        os.symlink('/' + name, os.path.join(directory, name))
    for at, (pid, tids) in enumerate(running):
        xml = domains.status(domains.domain('bench%d' % at,
                                            '00000000-0000-4000-8000-%012x' % (at + 1)), pid)
        head, _, rest = xml.partition(b'<vcpus>')
        vcpus = ''.join("<vcpu id='%d' pid='%s'/>" % pair for pair in enumerate(tids))
        path = os.path.join(directory, 'run/libvirt/qemu/bench%d.xml' % at)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb') as file:
            file.write(head + b'<vcpus>' + vcpus.encode() + rest[rest.index(b'</vcpus>'):])
    return directory


def measure(number, scope, samples):
    """Return {first_s, sample_s, descriptors, source, memory} of so many guests."""
    with guests(number) as running, control_groups(running) as memory, \
            tempfile.TemporaryDirectory() as directory:
        options = counting.Options(events=EVENTS, scope=scope)
        with collect.Sampler(options, root_of(directory, running)) as sampler:
            costs = []
            for at in range(samples + 1):
                began = time.process_time()
                found = sampler.sample(at * INTERVAL_NS)
                costs.append(time.process_time() - began)
            return {'first_s': costs[0], 'sample_s': statistics.median(costs[1:]),
                    'descriptors': len(os.listdir('/proc/self/fd')), 'source': found.source,
                    'memory': memory}


def main(argv=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--guests', type=int, nargs='+', default=[10, 100, 200])
    parser.add_argument('--scope', choices=('thread', 'cgroup'), default='thread')
    parser.add_argument('--samples', type=int, default=12)
    args = parser.parse_args(argv)
    if shutil.disk_usage(tempfile.gettempdir()).free < 100 << 20:
        print('skipped: no room for status files', file=sys.stderr)
        return 1
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print('%d vCPUs a guest, 4 software events, %d CPUs, a sample every %d s'
          % (VCPUS, os.cpu_count(), INTERVAL_NS // 10**9))
    table = {}
    for number in args.guests:
        found = table[number] = measure(number, args.scope, args.samples)
        print('%5d guests  %6d descriptors  first %6.1f ms  each %6.2f ms  %6.3f %% of a core  '
              '(%s%s)' % (number, found['descriptors'], 1e3 * found['first_s'],
                          1e3 * found['sample_s'], 1e11 * found['sample_s'] / INTERVAL_NS,
                          found['source'], '' if found['memory'] else ', memory not read'),
              flush=True)
    print(json.dumps({'scope': args.scope, 'guests': table}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
