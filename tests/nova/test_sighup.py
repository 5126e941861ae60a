# SPDX-License-Identifier: Apache-2.0
"""Workers of a real nova-scheduler have the new options after SIGHUP."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import nova.version

from tests.nova import base

DIRECTORY = os.path.dirname(sys.executable)
WORKERS = 2
WAIT_S = 120
CONF = """
    [DEFAULT]
    debug = true
    report_interval = 3600
    transport_url = fake:/
    state_path = {directory}
    log_file = {directory}/log
    [database]
    connection = sqlite:///{directory}/nova.db
    [api_database]
    connection = sqlite:///{directory}/api.db
    [placement]
    auth_type = none
    endpoint_override = http://127.0.0.1:1
    [scheduler]
    workers = {workers}
    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers
    weight_classes = {weigher}
    [numa_pmc]
    mode = {mode}
"""
#: Lines of a worker: it has started; the options with which it starts, which Nova logs with
#: ``debug`` if it uses native threads; an option that has changed.
STARTED = re.compile(r'^\S+ \S+ (\d+) .* Starting scheduler node', re.MULTILINE)
MODE = re.compile(
    r'^\S+ \S+ (\d+) .* '
    r'(?:numa_pmc\.mode += |Option numa_pmc\.mode changed from \[\w+\] to \[)(\w+)',
    re.MULTILINE,
)


class SighupTest(unittest.TestCase):
    """nova-scheduler has no cell and no Placement here, so it starts, but gets no request."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path, self.log = (os.path.join(directory.name, name) for name in ('nova.conf', 'log'))
        self.write('on')
        for command in (['api_db', 'sync'], ['db', 'sync', '--local_cell']):
            subprocess.run(
                [*self.command('nova-manage'), *command], check=True, capture_output=True
            )
        os.truncate(self.log, 0)

    def write(self, mode):
        """Write nova.conf."""
        text = textwrap.dedent(CONF).format(
            directory=os.path.dirname(self.path), workers=WORKERS, weigher=base.WEIGHER, mode=mode
        )
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write(text)

    def command(self, name):
        return [sys.executable, os.path.join(DIRECTORY, name), '--config-file', self.path]

    def start(self, **environment):
        """Start nova-scheduler, and return its process."""
        process = subprocess.Popen(
            self.command('nova-scheduler'),
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(self.stop, process)
        return process

    def stop(self, process):
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def workers(self, process, mode=None, besides=()):
        """Wait for as many workers as configured; return their process ids.

        :param mode: the mode that each of them has to have logged; None: any or none
        :param besides: process ids of workers that no longer count
        """
        workers, modes, end_s = set(), {}, time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < end_s:
            with open(self.log, encoding='utf-8') as file:
                text = file.read()
            modes = dict(MODE.findall(text))
            workers = set(STARTED.findall(text)).difference(besides)
            if len(workers) == WORKERS and (
                mode is None or all(modes.get(worker) == mode for worker in workers)
            ):
                return workers
            time.sleep(0.1)
        self.fail(f'nova-scheduler has no {WORKERS} workers with mode {mode}: {workers}, {modes}')

    def test_workers_with_eventlet_go_on_with_the_new_options(self):
        process = self.start(OS_NOVA_DISABLE_EVENTLET_PATCHING='false')
        before = self.workers(process)
        self.write('off')
        process.send_signal(signal.SIGHUP)
        self.assertEqual(before, self.workers(process, 'off'))

    @unittest.skipIf(
        nova.version.version_string() < '33', 'nova-scheduler cannot use native threads'
    )
    def test_workers_with_native_threads_are_replaced_by_ones_with_the_new_options(self):
        process = self.start(OS_NOVA_DISABLE_EVENTLET_PATCHING='true')
        before = self.workers(process)
        self.write('off')
        process.send_signal(signal.SIGHUP)
        self.workers(process, 'off', besides=before)
