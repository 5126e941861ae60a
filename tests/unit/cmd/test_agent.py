# SPDX-License-Identifier: Apache-2.0
"""Test the command nova-numa-agent, except for the loop that it runs."""

import ast
import contextlib
import importlib.util
import io
import logging
import os
import pathlib
import select
import signal
import subprocess
import sys
import unittest
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.agent.agent import hold_agent_lock
from nova_numa_pmc.cmd import agent
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.state import promises_file
from tests.cases.root import RootCase
from tests.fixtures import fake_host, measured_host
from tests.fixtures.checkout import TOP

UNIT = TOP / 'etc/systemd/nova-numa-agent.service'


class LoggingTest(unittest.TestCase):
    def test_each_line_in_the_journal_has_its_priority_and_elsewhere_its_time(self):
        logger = logging.getLogger('nova_numa_pmc')
        self.addCleanup(logger.setLevel, logger.level)
        self.addCleanup(logger.handlers.clear)
        for stream, expected in (
            ('8:1', r'<4>one\n<4>two\n'),
            ('', r'[0-9].* WARNING one\ntwo\n'),
        ):
            with self.subTest(stream), contextlib.redirect_stderr(io.StringIO()) as error:
                with mock.patch.dict(os.environ, JOURNAL_STREAM=stream):
                    agent.log_to_stderr()
                logger.warning('one\ntwo')
                self.assertRegex(error.getvalue(), '^%s$' % expected)


class CommandTest(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)
        self.host.set_idle()
        self.directory = os.path.join(self.root, 'run/nova-numa-pmc')
        self.config = os.path.join(self.root, 'options.conf')
        self.configure('')
        logger = logging.getLogger('nova_numa_pmc')
        self.addCleanup(logger.setLevel, logger.level)
        self.addCleanup(logger.handlers.clear)

    def configure(self, text):
        with open(self.config, 'w') as file:
            file.write(text)

    def run_it(self, *args):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = agent.main(['--config-file', self.config, '--root', self.root, *args])
        return status, out.getvalue(), err.getvalue()

    def keep_bound_promise(self):
        with promises_file.locked(host_options.read('/dev/null'), self.root) as draft:
            draft.put(
                model.Promise(
                    fake_host.uuid_of(1),
                    fake_host.name_of(1),
                    (1,),
                    (1,),
                    2,
                    512 << 20,
                    since_ns=1,
                    started=True,
                    bound=True,
                )
            )

    def test_a_second_service_beside_the_first_ends_at_once(self):
        with hold_agent_lock(self.directory):
            status, _, err = self.run_it()
        self.assertEqual(1, status)
        self.assertIn('another nova-numa-agent is running', err)

    def test_check_exits_with_1_where_an_option_is_wrong(self):
        for text, exit_code, said in (
            ('', 0, self.config + ': nothing wrong'),
            ('[hook]\ntimeout_s = soon\n', 1, 'timeout_s'),
            ('[agent]\nrebalance = maybe\n', 1, 'rebalance'),
            ('[agnet]\nrebalance = on\n', 1, 'did you mean [agent] rebalance?'),
        ):
            with self.subTest(text):
                self.configure(text)
                status, out, err = self.run_it('--check')
                self.assertEqual((exit_code, ''), (status, err))
                self.assertIn(said, out)

    def test_wrong_usage_exits_with_64(self):
        for args in (['--unbind', '--check'], ['--no-such']):
            with self.assertRaises(SystemExit) as ended:
                self.run_it(*args)
            self.assertEqual(64, ended.exception.code)

    def test_no_wrong_option_keeps_guests_bound(self):
        tree = self.host.launch(1)
        tree.set_all('1', 'mems')
        self.keep_bound_promise()
        self.configure('[hook]\nbind = true\n[agent]\nmoved_percent_per_day = x\n')
        self.assertEqual('1', tree.held('mems'))
        self.assertEqual((0, ''), self.run_it('--unbind')[:2])
        self.assertEqual('0-1', tree.held('mems'))

    def begun(self):
        """Start the agent as a separate process."""
        command = (sys.executable, '-m', 'nova_numa_pmc.cmd.agent')
        return subprocess.Popen(
            [*command, '--config-file', self.config, '--root', self.root],
            stderr=subprocess.PIPE,
            cwd=TOP,
        )

    def test_the_service_runs_from_start_to_sigterm(self):
        """A separate process is controlled by pipes and signals."""
        self.configure('[counters]\ninterval_s = 0.5\n')
        with self.begun() as process:
            try:
                said_until(process, b'started: ')
                process.send_signal(signal.SIGTERM)
                said_until(process, b'stopped')
                self.assertEqual(0, process.wait(120))
                if importlib.util.find_spec('prometheus_client'):  # an extra
                    self.assertEqual(2, len(os.listdir(os.path.join(self.directory, 'metrics'))))
            finally:
                process.kill()


def said_until(process, text):
    """Read a process's output until it contains the text."""
    output = b''
    while text not in output:
        ready, _, _ = select.select([process.stderr], [], [], 120)
        part = os.read(process.stderr.fileno(), 65536) if ready else b''
        if not part:
            raise AssertionError('it said only: %s' % output.decode())
        output += part


class UnitTest(unittest.TestCase):
    """Settings that the unit file must, and must not, contain."""

    def setUp(self):
        lines = [line.strip() for line in UNIT.read_text().splitlines()]
        self.lines = [line for line in lines if line and not line.startswith('#')]

    def test_the_unit_keeps_the_state_directory_and_every_node(self):
        for line in (
            'Type=notify',
            'RuntimeDirectoryPreserve=yes',
            'ProtectControlGroups=no',
            'ExecStopPost=nova-numa-agent --unbind',
            'NoNewPrivileges=yes',
        ):
            self.assertIn(line, self.lines)
        names = {line.partition('=')[0] for line in self.lines}
        self.assertEqual(
            set(),
            names
            & {
                'AllowedMemoryNodes',
                'AllowedCPUs',
                'NUMAPolicy',
                'CPUAffinity',
                'PrivateUsers',
                'ProtectProc',
                'ProcSubset',
                'MemoryDenyWriteExecute',
            },
        )

    def test_the_unit_allows_no_network_socket(self):
        for line in ('RestrictAddressFamilies=AF_UNIX', 'IPAddressDeny=any'):
            self.assertIn(line, self.lines)
        self.assertFalse([line for line in self.lines if line.startswith('IPAddressAllow=')])

    def test_the_commands_of_the_unit_are_understood(self):
        for line in self.lines:
            name, _, command = line.partition('=')
            if name in ('ExecStart', 'ExecStopPost'):
                program, *args = command.split()
                self.assertEqual('nova-numa-agent', program)
                agent.build_parser().parse_args(args)


class LateImportTest(unittest.TestCase):
    def test_the_agent_imports_at_its_start_what_functions_import_late(self):
        top = pathlib.Path(agent.__file__).parents[1]
        late = set()
        for path in (*top.glob('placing/*.py'), *top.glob('host/*.py')):
            for function in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
                if isinstance(function, ast.FunctionDef):
                    for node in ast.walk(function):
                        if isinstance(node, ast.ImportFrom):
                            late |= {f'{node.module}.{alias.name}' for alias in node.names}
        modules = {
            name for name in late if (top.parent / (name.replace('.', '/') + '.py')).exists()
        }
        self.assertIn('nova_numa_pmc.host.cpusets', modules)
        done = subprocess.run(
            [sys.executable, '-c', 'import sys, nova_numa_pmc.cmd.agent; print(*sys.modules)'],
            cwd=top.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(set(), modules - set(done.stdout.split()))
