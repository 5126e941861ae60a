# SPDX-License-Identifier: Apache-2.0
"""Measure the hook's whole process compared with a bare interpreter, in pairs.

    python -m tests.bench.bench_hook [--runs 30]

Prints the medians of each operation and, as its last line, a JSON object with the worst
operation's ratio. ``python -X importtime -c 'import nova_numa_pmc.hook'`` shows what costs it.
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

from nova_numa_pmc import model
from nova_numa_pmc.host import files, hook_files
from nova_numa_pmc.state import publication
from tests.fixtures import fake_host, hook_script
from tests.fixtures.model_records import published_pools

BARE = [hook_files.INTERPRETER, '-I', '-S', '-c', 'pass']
RATIO_MAX = 4.0
OPERATIONS = ('start', 'started', 'stopped', 'reconnect')
STARTING = 100


def main():
    """Run the benchmark; return 1 if the hook costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--runs', type=int, default=30, help='pairs per operation')
    runs = parser.parse_args().runs
    compile_for_interpreter()
    adopt_orphans()
    root = tempfile.mkdtemp(prefix='bench-hook-')
    try:
        host, path = prepare(root)
        ratios = {}
        print('%-10s %9s %9s %7s' % ('operation', 'hook ms', 'bare ms', 'ratio'))
        for operation in OPERATIONS:
            hook_s, bare_s, ratios[operation] = measure(host, path, operation, runs)
            print(
                '%-10s %9.2f %9.2f %7.2f'
                % (operation, hook_s * 1e3, bare_s * 1e3, ratios[operation])
            )
    finally:
        shutil.rmtree(root)
    worst = max(ratios.values())
    figures = {
        'ratio_to_bare': round(worst, 2),
        'ratio_max': RATIO_MAX,
        'runs': runs,
        'compared_with': ' '.join(BARE),
        'ratios': {name: round(value, 2) for name, value in ratios.items()},
    }
    print(json.dumps(figures))
    return int(worst > RATIO_MAX)


def compile_for_interpreter():
    """Byte-compile the package as ``hook install`` does."""
    directory = hook_files.package_site() + '/nova_numa_pmc'
    subprocess.run([hook_files.INTERPRETER, '-m', 'compileall', '-q', directory], check=True)


def prepare(root):
    """Make a host of two nodes with 20 guests and one more that starts."""
    host = fake_host.FakeHost(root)
    path = hook_script.write_script(root + '/qemu', root)
    for number in range(20):
        hook_script.run_script(
            path, fake_host.name_of(number), 'start', fake_host.domain_xml(number)
        )
        host.launch(number)
        hook_script.run_script(
            path, fake_host.name_of(number), 'started', fake_host.domain_xml(number)
        )
    publish(root)
    return host, path


def publish(root):
    """Publish measurements as the agent does: the hook bases its decision on them."""
    load = model.NodeLoad(1.0, 10**9, 10**11)
    publication.write(
        root + '/run/nova-numa-pmc',
        published_pools(
            files.read_boot_id(root),
            files.boottime_ns(),
            (model.PoolLoad(frozenset(range(8)), ((0, load), (1, load)), ((0, 20), (1, 20))),),
            600.0,
        ),
    )


def measure(host, path, operation, runs):
    """Return the medians of ``runs`` interleaved pairs: hook [s], bare [s], their ratio.

    The ratio is computed within each pair, because other load on the machine drifts over the runs.
    """
    hook_s, bare_s = [], []
    xml = fake_host.domain_xml(STARTING)
    for _ in range(runs):
        host.end(STARTING)
        if operation in ('started', 'stopped'):
            hook_script.run_script(path, fake_host.name_of(STARTING), 'start', xml)
            host.launch(STARTING)
            wait_for_early_hold()  # long done when libvirt calls `started`
        hook_s.append(
            timed(
                lambda: hook_script.run_script(path, fake_host.name_of(STARTING), operation, xml)
            )
        )
        bare_s.append(timed(lambda: subprocess.run(BARE, input=xml, capture_output=True)))
        lines = host.logged()
        if any('left as it is' in line for line in lines):
            sys.exit('the hook failed: %s' % lines)
    return (
        statistics.median(hook_s),
        statistics.median(bare_s),
        statistics.median(hook / bare for hook, bare in zip(hook_s, bare_s)),
    )


def adopt_orphans():
    """Become the parent of the processes that the hook leaves behind, to wait for them (Linux)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def wait_for_early_hold():
    """Wait until the processes that the hook's ``start`` leaves behind have ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def timed(work):
    """Return the CPU time of the processes that a call runs and waits for [s].

    Unlike its duration, it does not depend on what else the machine is doing.
    """
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime


if __name__ == '__main__':
    sys.exit(main())
