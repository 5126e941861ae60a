# SPDX-License-Identifier: Apache-2.0
"""Run Nova's own functional tests without and with the package, and compare the results.

``python -m tests.nova.upstream [MODULE or test id ...]`` in an environment of
``tools/setup nova34``. With the package, every test has its monitor in each compute, its filter
after those that the test enables, its weigher in addition to Nova's if the test does not choose
weighers itself, and a publication as written by the agent. Fails if a test fails with the
package but not without it.
"""

import argparse
import collections
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

from tests import nova

MODULES = [
    f'nova.tests.functional.{name}'
    for name in (
        'libvirt.test_numa_servers',
        'libvirt.test_numa_live_migration',
        'libvirt.test_live_migration',
        'compute.test_live_migration',
        'wsgi.test_servers',
        'test_servers',
    )
]
OUTCOMES = ('passed', 'failed', 'skipped')


class Outcomes(unittest.TestResult):
    """Record each test's outcome and show progress."""

    def __init__(self):
        super().__init__()
        self.by_test = {}

    def _note(self, test, outcome, text=''):
        # The outcome of its clean-up does not change that of a failed test.
        if self.by_test.get(test.id()) != 'failed':
            self.by_test[test.id()] = outcome
        if outcome == 'failed':
            print(f'{test.id()}\n{text}', file=sys.stderr)
        if len(self.by_test) % 25 == 0:
            print(f'  {len(self.by_test)} tests …', file=sys.stderr, flush=True)

    def addSuccess(self, test, *details, **named):
        self._note(test, 'passed')

    def addSkip(self, test, *details, **named):
        self._note(test, 'skipped')

    def addError(self, test, error=None, details=None):
        self._note(test, 'failed', _text(error, details))

    addFailure = addUnexpectedSuccess = addError

    def addExpectedFailure(self, test, *details, **named):
        self._note(test, 'passed')


def _text(error, details):
    if details and 'traceback' in details:
        return details['traceback'].as_text()[-2000:]
    return str(error and error[1])[-2000:]


def configure(ours):
    """Have every test start with the package's configuration.

    :param ours: False: only what Nova's tests need outside its source tree
    :returns: a Counter of calls of the package's classes
    """
    from nova.tests.fixtures import conf as conf_fixture

    original = conf_fixture.ConfFixture.setUp
    publish = _publisher() if ours else None

    def set_up(fixture):
        original(fixture)
        fixture.conf.set_default(
            'api_paste_config',
            group='wsgi',
            default=os.path.join(sys.prefix, 'etc/nova/api-paste.ini'),
        )
        if ours:
            publish()
            _enable(fixture.conf)

    conf_fixture.ConfFixture.setUp = set_up
    return _count_calls() if ours else collections.Counter()


def _enable(conf):
    from tests.nova import base

    conf.set_default('compute_monitors', ['numa_pmc'])
    for name, value in (
        ('weight_classes', ['nova.scheduler.weights.all_weighers', base.WEIGHER]),
        ('available_filters', ['nova.scheduler.filters.all_filters', base.FILTER]),
    ):
        conf.set_default(name, value, group='filter_scheduler')


def _publisher():
    """Return a function that publishes a calm host of two large nodes for all computes."""
    from nova_numa_pmc import model
    from nova_numa_pmc.conf import host_options
    from nova_numa_pmc.state import publication

    directory = tempfile.mkdtemp(prefix='nova-upstream-')
    host_options.PATH = os.path.join(directory, 'conf')
    with open(host_options.PATH, 'w') as file:
        file.write(f'[state]\ndir = {directory}/state\n')
    nodes = tuple(
        model.NodeView(
            id=at,
            cores=1024,
            cpu_count=1024,
            capacity_bytes=1 << 40,
            promised_bytes=0,
            demand_cores=100.0,
        )
        for at in (0, 1)
    )

    def publish():
        publication.write(
            f'{directory}/state',
            publication.Publication(
                time.time(), 600.0, model.HostView(nodes, ((10, 21), (21, 10))), (None, None)
            ),
        )

    return publish


def _count_calls():
    """Count calls of the package's classes, and add its filter to those that a test enables."""
    from nova.scheduler import host_manager

    from nova_numa_pmc.compute import monitor
    from tests.nova import base

    calls = collections.Counter()

    def counted(owner, method, name):
        original = getattr(owner, method)

        def call(*arguments, **named):
            calls[name] += 1
            return original(*arguments, **named)

        setattr(owner, method, call)

    for path, method in ((base.WEIGHER, 'weigh_objects'), (base.FILTER, 'filter_all')):
        module, _, name = path.rpartition('.')
        counted(getattr(importlib.import_module(module), name), method, name)
    counted(monitor.Monitor, '_metrics', 'Monitor')
    load = host_manager.HostManager._load_filters
    ours = base.FILTER.rpartition('.')[2]
    host_manager.HostManager._load_filters = lambda self: [*load(self), ours]
    return calls


def run(names, ours):
    """Run the tests in this process; print a final line of JSON."""
    calls = configure(ours)
    result = Outcomes()
    unittest.defaultTestLoader.loadTestsFromNames(names).run(result)
    print(json.dumps({'tests': result.by_test, 'calls': calls}))


def run_apart(names, ours):
    """Run the tests in a process of their own; return what :func:`run` printed."""
    print(f'{"with" if ours else "without"} the package: {", ".join(names)}', flush=True)
    start = time.monotonic()
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'tests.nova.upstream',
            '--run',
            'with' if ours else 'without',
            *names,
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=nova.CHECKOUT,
        env={
            'OS_TEST_TIMEOUT': '160',
            'OS_STDOUT_CAPTURE': '1',
            'OS_STDERR_CAPTURE': '1',
            **os.environ,
        },
    )
    if done.returncode:
        sys.exit(f'the test run exited with status {done.returncode}')
    answer = json.loads(done.stdout.splitlines()[-1])
    counts = collections.Counter(answer['tests'].values())
    print(
        ', '.join(f'{counts[outcome]} {outcome}' for outcome in OUTCOMES),
        f'in {time.monotonic() - start:.0f} s'
        + ''.join(f'; {name} ran {count} times' for name, count in answer['calls'].items()),
        flush=True,
    )
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--run', choices=('with', 'without'), help='run once, in this process')
    parser.add_argument(
        'names',
        nargs='*',
        default=MODULES,
        metavar='NAME',
        help='modules, classes or tests (default: servers, NUMA servers and live migration)',
    )
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.names, arguments.run == 'with')
        return 0
    plain, ours = (run_apart(arguments.names, which) for which in (False, True))
    idle = [
        name
        for name in ('NUMAPressureWeigher', 'NUMAPressureFilter', 'Monitor')
        if not ours['calls'].get(name)
    ]
    worse = [
        test
        for test, outcome in ours['tests'].items()
        if outcome == 'failed' and plain['tests'].get(test) != 'failed'
    ]
    for test in worse:
        print(f'fails only with the package: {test}')
    for name in idle:
        print(f'was never called: {name}')
    return 1 if worse or idle or len(ours['tests']) != len(plain['tests']) else 0


if __name__ == '__main__':
    sys.exit(main())
