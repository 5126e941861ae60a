# SPDX-License-Identifier: Apache-2.0
"""The Python that runs nova-compute is found, and asked whether it can load the monitor."""

import json
import os
import sys
import tempfile

from nova_numa_pmc.checks import interpreter, monitor
from nova_numa_pmc.host import processes
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

POINT = ('numa_pmc', monitor.TARGET + ':Monitor')


class InterpreterTest(RootCase):
    def test_the_interpreter_is_the_one_that_runs_nova_compute(self):
        for pid, command, expected in (
            (9, ('/opt/venv/bin/python3', '/opt/venv/bin/nova-compute'), '/opt/venv/bin/python3'),
            (10, ('python3', '/opt/venv/bin/nova-compute'), None),
            (11, ('/usr/bin/nova-compute',), '/usr/bin/python3.11'),
        ):
            with self.subTest(command=command), tempfile.TemporaryDirectory() as root:
                write(root, 'usr/bin/nova-compute', '#!/usr/bin/python3.11 -I\nimport nova\n')
                add_process(root, pid, command)
                process = processes.find(root, 'nova-compute')
                self.assertEqual(expected, interpreter.python_of(process, root=root))

    def test_the_interpreter_is_read_from_the_scripts_first_line(self):
        for text, expected in (
            (b'#!/usr/bin/python3\n', '/usr/bin/python3'),
            (b'#!/bin/sh\n', None),
            (b'\x7fELF\xff\n', None),
            (b'', None),
            (b'#! python3\n', None),
            (b'#!\n', None),
        ):
            with self.subTest(text=text):
                write(self.root, 'usr/bin/nova-compute', text)
                self.assertEqual(
                    expected, interpreter.python_of(None, '/usr/bin/nova-compute', self.root)
                )
        self.assertIsNone(interpreter.python_of(None, '/usr/bin/absent', self.root))

    def fake_python(self, lines):
        path = os.path.join(self.root, 'python3')
        write(self.root, 'python3', '#!/bin/sh\n' + lines)
        os.chmod(path, 0o755)
        return path

    def test_the_interpreter_reports_whether_its_nova_has_the_shim(self):
        site = os.path.join(self.root, 'site')
        for name in (
            'nova/__init__',
            'nova/compute/__init__',
            'nova/compute/monitors/__init__',
            'nova/compute/monitors/cpu/__init__',
            'nova_numa_pmc/__init__',
        ):
            # Nothing of Nova is run: these would end it.
            write(site, name + '.py', 'raise SystemExit(3)\n')
        write(
            site,
            'ours-1.dist-info/entry_points.txt',
            '[nova.compute.monitors.cpu]\nnuma_pmc = %s\n' % POINT[1],
        )
        write(site, 'ours-1.dist-info/METADATA', 'Metadata-Version: 2.1\nName: ours\n')
        python = self.fake_python('PYTHONPATH=%s exec %s -S "$@"\n' % (site, sys.executable))
        answer = interpreter.query(python)
        self.assertEqual(('', None, (POINT,)), (answer.problem, answer.shim, answer.points))
        self.assertEqual((site + '/nova/compute/monitors/cpu',), answer.monitors)
        self.assertEqual(site + '/nova_numa_pmc/__init__.py', answer.package)
        write(site, 'nova/compute/monitors/cpu/numa_pmc.py', '')
        self.assertEqual(
            site + '/nova/compute/monitors/cpu/numa_pmc.py', interpreter.query(python).shim
        )

    def test_a_shim_beside_a_distributions_nova_is_not_found(self):
        for name in (
            'dist/nova/__init__.py',
            'dist/nova/compute/__init__.py',
            'dist/nova/compute/monitors/__init__.py',
            'dist/nova/compute/monitors/cpu/__init__.py',
            'local/nova/compute/monitors/cpu/numa_pmc.py',
        ):
            write(self.root, name, '')
        answer = interpreter.query(
            self.fake_python(
                'PYTHONPATH=%s/local:%s/dist exec %s -S "$@"\n'
                % (self.root, self.root, sys.executable)
            )
        )
        self.assertEqual(
            ((self.root + '/dist/nova/compute/monitors/cpu',), None),
            (answer.monitors, answer.shim),
        )

    def test_an_interpreter_without_nova_reports_nothing_and_no_problem(self):
        answer = interpreter.query(self.fake_python('exec %s -I -S "$@"\n' % sys.executable))
        self.assertEqual(
            ('', (), (), None, None),
            (answer.problem, answer.nova, answer.monitors, answer.shim, answer.package),
        )

    def test_an_interpreter_that_answers_with_other_types_is_a_problem(self):
        sound = {'nova': ['/n'], 'monitors': ['/n/m'], 'shim': '/s', 'package': '/p', 'points': []}
        for member, value, expected in (
            ('shim', None, ''),
            ('points', [list(POINT)], ''),
            ('nova', [1], 'exit status 0'),
            ('nova', '/n', 'exit status 0'),
            ('monitors', [None], 'exit status 0'),
            ('shim', 1, 'exit status 0'),
            ('package', ['/p'], 'exit status 0'),
            ('points', [['numa_pmc', 1]], 'exit status 0'),
            ('points', [['numa_pmc']], 'exit status 0'),
            ('points', ['ab'], 'exit status 0'),
        ):
            with self.subTest(member=member, value=value):
                answer = json.dumps({**sound, member: value})
                python = self.fake_python("echo '%s'\n" % answer)
                self.assertEqual(expected, interpreter.query(python).problem)

    def test_an_interpreter_that_does_not_answer_is_a_problem(self):
        for lines, expected in (
            ('echo nonsense', 'exit status 0'),
            ('echo {}', 'exit status 0'),
            ('echo "[1]"', 'exit status 0'),
            ('head -c 100000 /dev/zero | tr "\\0" "["', 'exit status 0'),
            ('echo why >&2; exit 4', 'why'),
            ('exec sleep 60', 'no answer within 0 s'),
        ):
            with self.subTest(lines=lines):
                timeout_s = 0 if 'sleep' in lines else 20
                answer = interpreter.query(self.fake_python(lines + '\n'), timeout_s=timeout_s)
                self.assertEqual(expected, answer.problem)
        self.assertIn('No such file', interpreter.query(self.root + '/absent').problem)
