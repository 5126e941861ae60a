# SPDX-License-Identifier: Apache-2.0
"""Test processes that outlive the command that started them."""

import os
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from tests.stack import layout, neutron, service

SLEEPER = [sys.executable, '-c', 'import time; print("up", flush=True); time.sleep(60)']


class ServiceTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.layout = layout.Layout(directory.name)
        self.layout.make()

    def _service(self, command=SLEEPER, ready=None, **more):
        started = service.Service(self.layout, 'it', command, ready, **more)
        self.addCleanup(started.stop)
        return started

    def test_a_service_starts_once_is_found_again_and_ended(self):
        one = self._service()
        one.start()
        pid = one.pid()
        one.start()
        other = self._service()
        self.assertEqual(pid, other.pid())
        self.assertTrue(other.stop())
        self.assertIsNone(one.pid())
        self.assertFalse(other.stop())

    def test_a_pid_that_another_process_has_now_is_not_ours(self):
        one = self._service()
        one.pid_file.write_text(f'{os.getpid()} 1\n')
        self.assertIsNone(one.pid())
        self.assertFalse(one.stop())

    def test_the_error_of_a_service_that_ends_contains_its_last_words(self):
        one = self._service(
            [sys.executable, '-c', 'raise SystemExit("no such luck")'], ready=lambda: False
        )
        with self.assertRaisesRegex(service.StackError, 'no such luck'):
            one.start()

    def test_the_error_of_a_service_that_is_never_ready_names_its_log(self):
        one = self._service(ready=lambda: False, timeout_s=0)
        with self.assertRaisesRegex(service.StackError, 'it.log'):
            one.start()

    def test_the_error_of_a_command_that_fails_contains_its_output(self):
        with self.assertRaisesRegex(service.StackError, r'failed \(3\).*\n.*gone wrong'):
            service.run(self.layout, 'step', ['sh', '-c', 'echo gone wrong; exit 3'])


class LayoutTest(unittest.TestCase):
    def test_passwords_stay_and_are_readable_by_their_owner_only(self):
        with tempfile.TemporaryDirectory() as directory:
            one = layout.Layout(directory)
            one.make()
            word = one.password('admin')
            one.make()
            self.assertEqual(word, layout.Layout(directory).password('admin'))
            self.assertEqual(0o600, (one.etc / 'passwords.json').stat().st_mode & 0o777)

    def test_logs_are_named_by_the_run(self):
        one = layout.Layout('/x')
        one.name_logs('with the package, 1')
        self.assertEqual('/x/logs-with-the-package-1/it.log', str(one.log('it')))

    def test_no_two_services_share_a_port(self):
        self.assertEqual(len(layout.PORTS), len(set(layout.PORTS.values())))


class StandInTest(unittest.TestCase):
    def setUp(self):
        self.server = neutron.server(0)
        self.addCleanup(self.server.server_close)
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.shutdown)
        self.server.RequestHandlerClass.log_message = lambda *words: None

    def _get(self, path, **more):
        address = f'http://127.0.0.1:{self.server.server_port}{path}'
        with urllib.request.urlopen(urllib.request.Request(address, **more), timeout=10) as got:
            return got.read().decode()

    def test_the_stand_in_for_neutron_lists_nothing(self):
        self.assertEqual('{"ports": []}', self._get('/v2.0/ports?device_id=x'))
        self.assertEqual('{"extensions": []}', self._get('/v2.0/extensions'))
        self.assertEqual('{"security_groups": []}', self._get('/v2.0/security-groups'))

    def test_the_stand_in_for_neutron_makes_nothing(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self._get('/v2.0/ports', method='POST', data=b'{}')
        self.assertEqual(404, caught.exception.code)
