# SPDX-License-Identifier: Apache-2.0
"""A monitor that nova-compute would not load, or whose metrics would not be sent, is found."""

import os
import unittest

from nova_numa_pmc.checks import interpreter, monitor
from nova_numa_pmc.host import nova_conf
from tests.cases.root import RootCase
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
    return [finding.code for finding in findings]


class ConfTest(RootCase):
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
        (finding,) = monitor.check_enabled(self.conf())
        self.assertTrue(finding.file.endswith('nova.conf'))

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

    def test_cpu_metrics_that_are_weighed_but_not_sent_are_reported(self):
        weighed = '[metrics]\nweight_setting = %s\n[numa_pmc]\ncpu_metrics = %s'
        for option, sent, expected in (
            ('cpu.percent=-1.0', 'false', ['cpu-metrics-off']),
            ('cpu.percent=-1.0', 'true', []),
            ('numa.membw.current=-1.0', 'false', []),
        ):
            with self.subTest(option=option, sent=sent):
                conf = self.conf('compute_monitors = numa_pmc\n' + weighed % (option, sent))
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
        ):
            with self.subTest(change=change):
                self.assertEqual(expected, codes(monitor.check_loadable(SEEN._replace(**change))))

    def test_a_shim_in_another_prefix_is_found(self):
        where = '/usr/local/lib/python3/nova/compute/monitors/cpu/numa_pmc.py'
        (finding,) = monitor.check_loadable(SEEN._replace(shim=None), where)
        self.assertIn(where, finding.message)
        self.assertIn(SEEN.monitors[0], finding.message)
