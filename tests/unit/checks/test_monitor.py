# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import unittest

from nova_numa_pmc.checks import interpreter, monitor
from nova_numa_pmc.host import nova_conf, processes
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

POINT = ('numa_pmc', monitor.TARGET + ':Monitor')
STOCK = ('virt_driver', 'nova.compute.monitors.cpu.virt_driver:Monitor')
SEEN = interpreter.InterpreterModules(
    '/usr/bin/python3',
    ('/usr/lib/nova',),
    ('/usr/lib/nova/compute/monitors/cpu',),
    '/usr/lib/nova/compute/monitors/cpu/numa_pmc.py',
    '/usr/lib/nova_numa_pmc/__init__.py',
    (POINT, STOCK),
)


def codes(findings):
    return [found.code for found in findings]


class ConfTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name

    def conf(self, text=''):
        write(self.root, 'nova.conf', '[DEFAULT]\n%s\n' % text)
        return nova_conf.NovaConf([os.path.join(self.root, 'nova.conf')])

    def test_a_monitor_that_is_not_enabled_or_in_conflict_is_found(self):
        for value, expected in (
            ('', ['monitor-not-enabled']),
            ('cpu.virt_driver', ['monitor-not-enabled']),
            ('numa_pmc', []),
            ('cpu.numa_pmc', []),
            ('nova.compute.monitors.cpu.numa_pmc', []),
            ('membw.numa_pmc,cpu.numa_pmc', []),
            ('membw.numa_pmc', ['monitor-not-enabled']),
            ('cpu.numa_pmc,virt_driver', ['monitor-conflict']),
        ):
            with self.subTest(value=value):
                conf = self.conf('compute_monitors = ' + value)
                self.assertEqual(expected, codes(monitor.check_enabled(conf)))
        (found,) = monitor.check_enabled(self.conf())
        self.assertTrue(found.file.endswith('nova.conf'))

    def test_an_update_interval_that_is_off_or_long_is_found(self):
        for value, expected in (
            ('0', []),
            ('60', []),
            ('-1', ['update-interval-off']),
            ('3600', ['update-interval-long']),
        ):
            with self.subTest(value=value):
                conf = self.conf('update_resources_interval = ' + value)
                self.assertEqual(expected, codes(monitor.check_interval(conf)))

    def test_cpu_metrics_that_are_weighed_but_not_sent_are_told(self):
        weighed = '[metrics]\nweight_setting = %s\n[numa_pmc]\ncpu_metrics = %s'
        for setting, sent, expected in (
            ('cpu.percent=-1.0', 'false', ['cpu-metrics-off']),
            ('cpu.percent=-1.0', 'true', []),
            ('numa.membw.current=-1.0', 'false', []),
        ):
            with self.subTest(setting=setting, sent=sent):
                conf = self.conf('compute_monitors = numa_pmc\n' + weighed % (setting, sent))
                self.assertEqual(expected, codes(monitor.check_cpu_metrics(conf)))
        other = self.conf(
            'compute_monitors = virt_driver\n' + weighed % ('cpu.percent=1', 'false')
        )
        self.assertEqual([], codes(monitor.check_cpu_metrics(other)))

    def test_a_dead_notification_bus_must_not_stop_boots(self):
        for text, expected in (
            ('', []),
            ('driver = noop', []),
            ('driver = messagingv2', ['notifications-endless']),
            ('driver = messagingv2\nretry = 1', []),
        ):
            with self.subTest(text=text):
                section = '\n[oslo_messaging_notifications]\n' + text
                conf = self.conf('compute_monitors = numa_pmc' + section)
                self.assertEqual(expected, codes(monitor.check_notifications(conf)))

    def test_without_a_monitor_nothing_is_notified(self):
        conf = self.conf('[oslo_messaging_notifications]\ndriver = messagingv2')
        self.assertEqual([], codes(monitor.check_notifications(conf)))

    def test_a_bad_option_of_ours_is_a_finding(self):
        conf = self.conf('compute_monitors = numa_pmc\n[numa_pmc]\nmetrics_deadband = 1')
        monitor.read_options(conf)
        self.assertEqual(['nova-conf-value'], codes(conf.findings))

    def test_a_nova_compute_older_than_its_configuration_is_found(self):
        conf = self.conf()
        add_process(self.root, 9, ('/usr/bin/nova-compute',), started_s=2_000)
        process = processes.find(self.root, 'nova-compute')
        for changed_s, expected in ((1_999, []), (2_001, ['nova-compute-not-restarted'])):
            with self.subTest(changed_s=changed_s):
                self.assertEqual(
                    expected,
                    codes(monitor.check_restarted(process, conf, {conf.files[0]: changed_s})),
                )
        self.assertEqual([], codes(monitor.check_restarted(None, conf, {conf.files[0]: 9_999})))


class LoadableTest(unittest.TestCase):
    def test_a_monitor_that_nova_can_load_gives_no_finding(self):
        self.assertEqual([], codes(monitor.check_loadable(SEEN)))

    def test_each_missing_part_of_the_monitor_is_found(self):
        for change, expected in (
            ({'package': None}, ['monitor-package-missing']),
            ({'points': (STOCK,)}, ['monitor-entry-point-missing']),
            (
                {'points': (('numa_pmc', 'nova_numa_pmc.compute.monitor:Monitor'),)},
                ['monitor-entry-point-elsewhere'],
            ),
            ({'shim': None}, ['monitor-shim-missing']),
            ({'nova': (), 'monitors': ()}, ['monitor-not-asked']),
            ({'problem': 'no answer within 20 s'}, ['monitor-not-asked']),
        ):
            with self.subTest(change=change):
                self.assertEqual(expected, codes(monitor.check_loadable(SEEN._replace(**change))))

    def test_a_shim_in_another_prefix_is_found(self):
        where = '/usr/local/lib/python3/nova/compute/monitors/cpu/numa_pmc.py'
        (found,) = monitor.check_loadable(SEEN._replace(shim=None), where)
        self.assertIn(where, found.message)
        self.assertIn(SEEN.monitors[0], found.message)


class InterpreterTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name

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

    def test_the_interpreter_tells_whether_its_nova_has_the_shim(self):
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
        said = interpreter.query(python)
        self.assertEqual(('', None, (POINT,)), (said.problem, said.shim, said.points))
        self.assertEqual((site + '/nova/compute/monitors/cpu',), said.monitors)
        self.assertEqual(site + '/nova_numa_pmc/__init__.py', said.package)
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
        said = interpreter.query(
            self.fake_python(
                'PYTHONPATH=%s/local:%s/dist exec %s -S "$@"\n'
                % (self.root, self.root, sys.executable)
            )
        )
        self.assertEqual(
            ((self.root + '/dist/nova/compute/monitors/cpu',), None), (said.monitors, said.shim)
        )

    def test_an_interpreter_without_nova_tells_nothing_and_no_problem(self):
        said = interpreter.query(self.fake_python('exec %s -I -S "$@"\n' % sys.executable))
        self.assertEqual(
            ('', (), (), None, None),
            (said.problem, said.nova, said.monitors, said.shim, said.package),
        )

    def test_an_interpreter_that_does_not_answer_is_a_problem(self):
        for lines, expected in (
            ('echo nonsense', 'exit status 0'),
            ('echo {}', 'exit status 0'),
            ('echo "[1]"', 'exit status 0'),
            ('echo why >&2; exit 4', 'why'),
            ('exec sleep 60', 'no answer within 0 s'),
        ):
            with self.subTest(lines=lines):
                timeout_s = 0 if 'sleep' in lines else 20
                said = interpreter.query(self.fake_python(lines + '\n'), timeout_s=timeout_s)
                self.assertEqual(expected, said.problem)
        self.assertIn('No such file', interpreter.query(self.root + '/absent').problem)
