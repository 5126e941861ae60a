# SPDX-License-Identifier: Apache-2.0
"""Options of Nova with which our parts would not count are found, and parts that do not load."""

import os
import unittest

from nova_numa_pmc.checks import interpreter, nova
from nova_numa_pmc.core.finding import ERROR, NOTE, WARNING
from nova_numa_pmc.host import nova_conf, services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

SEEN = interpreter.InterpreterModules(
    '/usr/bin/python3',
    '/usr/lib/nova',
    '/usr/lib/nova/compute/monitors/cpu',
    '/usr/lib/nova/compute/monitors/cpu/numa_pmc.py',
    '/usr/lib/nova_numa_pmc',
    ('1 in /usr/lib',),
)


WEIGHERS = 'nova.scheduler.weights.all_weighers'
ALL_FILTERS = 'available_filters = nova.scheduler.filters.all_filters\n'
PACKING = '\n[filter_scheduler]\nram_weight_multiplier = -1'
OUR_FILTER = 'available_filters = %s\n' % nova.FILTER


def found(findings, *areas):
    """Return the codes of the findings about these areas, the beginnings of their codes."""
    return [finding.code for finding in findings if finding.code.startswith(areas or '')]


class MonitorTest(RootCase):
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
                self.assertEqual(expected, found(nova.check_compute(conf), 'monitor'))
        (finding,) = nova.check_compute(self.conf())
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
                self.assertEqual(expected, found(nova.check_compute(conf), 'update'))

    def test_cpu_metrics_that_are_weighed_but_not_sent_are_reported(self):
        weighed = '[metrics]\nweight_setting = %s\n[numa_pmc]\ncpu_metrics = %s'
        for option, sent, expected in (
            ('cpu.percent=-1.0', 'false', ['cpu-metrics-off']),
            ('cpu.percent=-1.0', 'true', []),
            ('numa.membw.current=-1.0', 'false', []),
        ):
            with self.subTest(option=option, sent=sent):
                conf = self.conf('compute_monitors = numa_pmc\n' + weighed % (option, sent))
                self.assertEqual(expected, found(nova.check_compute(conf), 'cpu'))
        other = self.conf(
            'compute_monitors = virt_driver\n' + weighed % ('cpu.percent=1', 'false')
        )
        self.assertEqual([], found(nova.check_compute(other), 'cpu'))

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
                self.assertEqual(expected, found(nova.check_compute(conf), 'notif'))

    def test_a_bad_option_of_ours_is_a_finding(self):
        conf = self.conf('compute_monitors = numa_pmc\n[numa_pmc]\ncpu_metrics = maybe')
        self.assertEqual([], found(nova.check_compute(conf)))
        self.assertEqual(['nova-conf-value'], found(conf.findings))


class LoadableTest(unittest.TestCase):
    def test_each_missing_part_of_the_monitor_is_found(self):
        for change, expected in (
            ({'package': ''}, ['monitor-package-missing']),
            ({'installed': ()}, ['monitor-entry-point-missing']),
            ({'shim': ''}, ['monitor-shim-missing']),
            ({'nova': '', 'monitors': ''}, ['monitor-not-asked']),
        ):
            with self.subTest(change=change):
                self.assertEqual(
                    expected, found(nova.check_monitor_loadable(SEEN._replace(**change)))
                )


class SchedulerTest(RootCase):
    def conf(self, text, group='filter_scheduler', name='nova.conf'):
        write(self.root, name, '[%s]\n%s\n' % (group, text))
        return nova_conf.NovaConf([os.path.join(self.root, name)])

    @staticmethod
    def weighers(conf):
        """Return the findings about the weigher and its floor."""
        areas = 'weigher', 'floor-not'
        return [one for one in nova.check_scheduler(conf) if one.code.startswith(areas)]

    def weigher(self, conf):
        return found(self.weighers(conf))

    def test_cpu_metrics_that_are_weighed_have_to_be_sent(self):
        weighed = '\n[metrics]\nweight_setting = cpu.percent=-1.0, numa.membw.current=-1.0'
        for value, expected in ((WEIGHERS, []), (nova.WEIGHER, ['cpu-metrics-weighed'])):
            with self.subTest(value=value):
                conf = self.conf('weight_classes = ' + value + weighed)
                self.assertEqual(expected, found(nova.check_scheduler(conf), 'cpu'))

    def test_the_weigher_has_to_be_enabled_beside_others(self):
        for value, expected in (
            (WEIGHERS, ['weigher-not-enabled']),
            (nova.WEIGHER, ['weigher-alone']),
            ('%s,%s' % (WEIGHERS, nova.WEIGHER), []),
            ('%s,\n  %s' % (WEIGHERS, nova.WEIGHER), []),
        ):
            with self.subTest(value=value):
                conf = self.conf('weight_classes = ' + value)
                self.assertEqual(expected, self.weigher(conf))
        self.assertEqual(['weigher-not-enabled'], self.weigher(self.conf('')))

    def test_a_weigher_that_does_not_know_all_other_weights_is_found(self):
        first = 'weight_classes = %s,%s\n[numa_pmc]\nmode = ' % (nova.WEIGHER, WEIGHERS)
        (last, other) = self.weighers(self.conf(first + 'shadow'))
        self.assertEqual(('weigher-not-last', WARNING), (last.code, last.severity))
        self.assertIn('weight_classes = %s,%s' % (WEIGHERS, nova.WEIGHER), last.remedy)
        self.assertEqual('weigher-shadow', other.code)
        (last,) = self.weighers(self.conf(first + 'on'))
        self.assertEqual(('weigher-not-last', NOTE), (last.code, last.severity))

    def test_a_multiplier_too_weak_for_the_other_weighers_is_found(self):
        classes = 'weight_classes = %s,%s\n[numa_pmc]\n' % (WEIGHERS, nova.WEIGHER)
        for value, expected in (
            # Half of what a guest adds to a saturated host waits; Nova's weighers add up to five.
            ('10.1', []),
            ('10', ['weigher-weak']),
            ('15\n[filter_scheduler]\nram_weight_multiplier = 5', ['weigher-weak']),
            ('15\n[filter_scheduler]\nnum_instances_weight_multiplier = -3', ['weigher-weak']),
            ('9\n[filter_scheduler]\nhypervisor_version_weight_multiplier = 0', []),
            ('20\npenalty_floor = 0.4', ['weigher-weak']),
            ('500\npenalty_floor = 0.4', []),
            ('500\npenalty_floor = 0.5', ['weigher-weak']),
            ('500\npenalty_floor = nan', ['weigher-weak']),
            ('11' + PACKING, ['floor-not-for-packing']),
            ('500\npenalty_floor = 0.47' + PACKING, ['floor-not-for-packing']),
            ('500\npenalty_floor = 0.48' + PACKING, []),
            ('500\nmode = on', []),
            ('500\nmode = shadow', ['weigher-shadow']),
            ('500\nmode = Off', ['weigher-off']),
            ('0', ['weigher-off']),
            ('-1', ['weigher-off']),
            ('nan', ['weigher-off']),
        ):
            with self.subTest(value=value):
                conf = self.conf(classes + 'weight_multiplier = ' + value)
                self.assertEqual(expected, self.weigher(conf))

    def test_the_filter_has_to_be_available_and_enabled_by_its_name(self):
        enabled = 'enabled_filters = ComputeFilter, NUMAPressureFilter\n'
        for text, expected in (
            ('', ['filter-not-enabled']),
            (ALL_FILTERS + OUR_FILTER, ['filter-not-enabled']),
            (enabled, ['filter-not-available']),
            (enabled + ALL_FILTERS + OUR_FILTER, []),
            (enabled + OUR_FILTER, ['filter-alone']),
            (
                OUR_FILTER + ALL_FILTERS + 'enabled_filters = %s' % nova.FILTER,
                ['filter-dotted-name'],
            ),
        ):
            with self.subTest(text=text):
                self.assertEqual(expected, found(nova.check_scheduler(self.conf(text)), 'filter'))

    def test_one_best_host_for_simultaneous_requests_is_found(self):
        for text, expected in (
            ('', ['subset-herd']),
            ('shuffle_best_same_weighed_hosts = true', ['subset-herd']),
            ('host_subset_size = 5', []),
            ('weight_classes = %s' % nova.WEIGHER, []),
            *(
                ('weight_classes = %s\n[numa_pmc]\n%s' % (nova.WEIGHER, option), ['subset-herd'])
                for option in ('mode = shadow', 'mode = off', 'weight_multiplier = 0')
            ),
            *(
                ('weight_classes = %s\n%s' % (nova.WEIGHER, text), expected)
                for text, expected in (
                    ('[numa_pmc]\npenalty_floor = 0.4', ['floor-herd']),
                    ('[numa_pmc]\npenalty_floor = 0.01', ['floor-herd']),
                    ('[numa_pmc]\npenalty_floor = nan', ['floor-herd']),
                    ('[numa_pmc]\npenalty_floor = 0', []),
                    ('host_subset_size = 5\n[numa_pmc]\npenalty_floor = 0.4', []),
                    ('[numa_pmc]\npenalty_floor = 0.4\nmode = off', ['subset-herd']),
                )
            ),
        ):
            with self.subTest(text=text):
                self.assertEqual(
                    expected, found(nova.check_scheduler(self.conf(text)), 'subset', 'floor-herd')
                )

    def test_the_scheduler_has_to_find_the_package(self):
        for modules, expected in (
            (interpreter.InterpreterModules('p', '/n', package='/x'), []),
            (interpreter.InterpreterModules('p', '/n'), ['scheduler-package-missing']),
            (interpreter.InterpreterModules('p'), ['scheduler-not-asked']),
        ):
            with self.subTest(modules):
                self.assertEqual(expected, found(nova.check_scheduler_loadable(modules)))


class ServiceTest(RootCase):
    def process(self):
        add_process(self.root, 9, ('/usr/bin/nova-compute',), started_s=2_000)
        return services.find(self.root, 'nova-compute')

    def test_a_service_without_configuration_is_an_error_only_where_it_is_needed(self):
        stopped = ('nova-compute-not-running', NOTE)
        for process, required, expected in (
            (None, False, [stopped, ('nova-conf-missing', WARNING)]),
            (None, True, [stopped, ('nova-conf-missing', ERROR)]),
            (self.process(), False, [('nova-conf-missing', ERROR)]),
        ):
            with self.subTest(expected):
                findings = nova.check_service(
                    'nova-compute', process, nova_conf.NovaConf([]), required
                )
                self.assertEqual(
                    expected, [(finding.code, finding.severity) for finding in findings]
                )

    def test_a_service_whose_program_others_can_change_is_a_warning(self):
        findings = nova.check_service(
            'nova-compute', None, nova_conf.NovaConf([]), False, 'others can change it'
        )
        self.assertEqual(
            ('nova-compute-not-running', WARNING, 'others can change it'), next(findings)[:3]
        )

    def test_a_nova_compute_older_than_its_configuration_is_found(self):
        write(self.root, 'nova.conf', '[DEFAULT]\n')
        conf = nova_conf.NovaConf([os.path.join(self.root, 'nova.conf')])
        process = self.process()
        for changed_s, expected in (
            (1_999, []),
            (2_000.9, []),  # the time of a start is known to a second
            (2_002, ['nova-compute-not-restarted']),
        ):
            with self.subTest(changed_s=changed_s):
                findings = nova.check_restarted(process, conf, {conf.files[0]: changed_s})
                self.assertEqual(expected, [finding.code for finding in findings])
        self.assertEqual([], list(nova.check_restarted(None, conf, {conf.files[0]: 9_999})))


class UnknownOptionTest(RootCase):
    def file(self, text):
        self.write('some.conf', text)
        return os.path.join(self.root, 'some.conf')

    def test_only_our_group_of_novas_files_counts(self):
        text = '[numa_pmc]\nmode = on\ncpu_metrics = true\nweight_step = 1\n[libvirt]\ny = 2\n'
        (one,) = nova.check_our_group([self.file(text)])
        self.assertIn('[numa_pmc] weight_step', one.message)

    def test_a_group_that_resembles_ours_is_found(self):
        for section, count in (('numa-pmc', 1), ('numapmc', 1), ('NUMA_PMC', 0), ('notify', 0)):
            with self.subTest(section):
                path = self.file('[%s]\nmode = shadow\n' % section)
                self.assertEqual(count, len(list(nova.check_our_group([path]))))
