# SPDX-License-Identifier: Apache-2.0
"""Options of nova-scheduler with which the weigher or the filter would not count are found."""

import os

from nova_numa_pmc.checks import interpreter, scheduler
from nova_numa_pmc.finding import NOTE, WARNING
from nova_numa_pmc.host import nova_conf
from tests.cases.root import RootCase
from tests.fixtures.sysfs import write

STOCK = 'nova.scheduler.weights.all_weighers'
ALL_FILTERS = 'available_filters = nova.scheduler.filters.all_filters\n'
PACKING = '\n[filter_scheduler]\nram_weight_multiplier = -1'
PACKED = PACKING + '\n[numa_pmc]\npenalty_floor = 0.48'
OUR_FILTER = 'available_filters = %s\n' % scheduler.FILTER


def codes(findings):
    return [finding.code for finding in findings]


class SchedulerTest(RootCase):
    def conf(self, text, group='filter_scheduler', name='nova.conf'):
        write(self.root, name, '[%s]\n%s\n' % (group, text))
        return nova_conf.NovaConf([os.path.join(self.root, name)])

    def test_cpu_metrics_that_are_weighed_have_to_be_sent(self):
        weighed = '\n[metrics]\nweight_setting = cpu.percent=-1.0, numa.membw.current=-1.0'
        for value, expected in ((STOCK, []), (scheduler.WEIGHER, ['cpu-metrics-weighed'])):
            with self.subTest(value=value):
                conf = self.conf('weight_classes = ' + value + weighed)
                self.assertEqual(expected, codes(scheduler.check_cpu_metrics(conf)))

    def test_the_weigher_has_to_be_enabled_beside_others(self):
        for value, expected in (
            (STOCK, ['weigher-not-enabled']),
            (scheduler.WEIGHER, ['weigher-alone']),
            ('%s,%s' % (STOCK, scheduler.WEIGHER), []),
            ('%s,\n  %s' % (STOCK, scheduler.WEIGHER), []),
        ):
            with self.subTest(value=value):
                conf = self.conf('weight_classes = ' + value)
                self.assertEqual(expected, codes(scheduler.check_weigher(conf)))
        self.assertEqual(['weigher-not-enabled'], codes(scheduler.check_weigher(self.conf(''))))

    def test_a_weigher_that_does_not_know_all_other_weights_is_found(self):
        first = 'weight_classes = %s,%s\n[numa_pmc]\nmode = ' % (scheduler.WEIGHER, STOCK)
        (found, other) = scheduler.check_weigher(self.conf(first + 'shadow'))
        self.assertEqual(('weigher-not-last', WARNING), (found.code, found.severity))
        self.assertIn('weight_classes = %s,%s' % (STOCK, scheduler.WEIGHER), found.remedy)
        self.assertEqual('weigher-shadow', other.code)
        (found,) = scheduler.check_weigher(self.conf(first + 'on'))
        self.assertEqual(('weigher-not-last', NOTE), (found.code, found.severity))

    def test_a_multiplier_too_weak_for_the_other_weighers_is_found(self):
        classes = 'weight_classes = %s,%s\n[numa_pmc]\n' % (STOCK, scheduler.WEIGHER)
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
                self.assertEqual(expected, codes(scheduler.check_weigher(conf)))

    def test_values_of_the_schedulers_options_that_cannot_be_used_are_found(self):
        for option in (
            'mode = shadows',
            'max_pressure = 100',
            'penalty_floor = 2',
            'require_one_node = maybe',
        ):
            with self.subTest(option):
                conf = self.conf(option, 'numa_pmc')
                scheduler.read_options(conf)
                self.assertEqual(['nova-conf-value'], codes(conf.findings))
        conf = self.conf('mode = Shadow\nmax_pressure = 2', 'numa_pmc')
        scheduler.read_options(conf)
        self.assertEqual([], conf.findings)

    def test_the_default_multiplier_is_enough_and_so_is_the_remedy_for_a_weak_one(self):
        classes = 'weight_classes = %s,%s\n[numa_pmc]\n' % (STOCK, scheduler.WEIGHER)
        self.assertEqual([], codes(scheduler.check_weigher(self.conf(classes))))
        (finding,) = scheduler.check_weigher(self.conf(classes + 'weight_multiplier = 5'))
        self.assertIn('the penalty of a saturated host (2.5)', finding.message)
        self.assertEqual('set it above 10', finding.remedy)
        remedy = 'weight_multiplier = 10.1'
        self.assertEqual([], codes(scheduler.check_weigher(self.conf(classes + remedy))))
        (finding,) = scheduler.check_weigher(self.conf(classes + 'penalty_floor = 0.6'))
        self.assertEqual('set penalty_floor below 0.5', finding.remedy)

    def test_the_filter_has_to_be_available_and_enabled_by_its_name(self):
        enabled = 'enabled_filters = ComputeFilter, NUMAPressureFilter\n'
        for text, expected in (
            ('', ['filter-not-enabled']),
            (ALL_FILTERS + OUR_FILTER, ['filter-not-enabled']),
            (enabled, ['filter-not-available']),
            (enabled + ALL_FILTERS + OUR_FILTER, []),
            (enabled + OUR_FILTER, ['filter-alone']),
            (
                OUR_FILTER + ALL_FILTERS + 'enabled_filters = %s' % scheduler.FILTER,
                ['filter-dotted-name'],
            ),
        ):
            with self.subTest(text=text):
                self.assertEqual(expected, codes(scheduler.check_filter(self.conf(text))))

    def test_one_best_host_for_simultaneous_requests_is_found(self):
        for text, expected in (
            ('', ['subset-herd']),
            ('shuffle_best_same_weighed_hosts = true', ['subset-herd']),
            ('host_subset_size = 5', []),
            ('weight_classes = %s' % scheduler.WEIGHER, []),
            *(
                (
                    'weight_classes = %s\n[numa_pmc]\n%s' % (scheduler.WEIGHER, option),
                    ['subset-herd'],
                )
                for option in ('mode = shadow', 'mode = off', 'weight_multiplier = 0')
            ),
            *(
                ('weight_classes = %s\n%s' % (scheduler.WEIGHER, text), expected)
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
                self.assertEqual(expected, codes(scheduler.check_host_subset(self.conf(text))))

    def test_simultaneous_requests_below_the_floor_are_a_note_with_the_remedy(self):
        conf = self.conf('weight_classes = %s%s' % (scheduler.WEIGHER, PACKED))
        (found,) = scheduler.check_host_subset(conf)
        self.assertEqual(NOTE, found.severity)
        self.assertIn('penalty_floor = 0.4', found.message)
        self.assertEqual('[filter_scheduler] host_subset_size = 5', found.remedy)

    def test_candidates_that_placement_does_not_randomise_are_found(self):
        conf = self.conf('max_placement_results = 500', 'scheduler')
        off = self.conf('', 'placement', 'placement.conf')
        (finding,) = scheduler.check_candidates(conf, off)
        self.assertEqual('candidates-not-random', finding.code)
        self.assertIn('at most 500', finding.message)
        on = self.conf('randomize_allocation_candidates = True', 'placement', 'on.conf')
        self.assertEqual([], codes(scheduler.check_candidates(conf, on)))
        self.assertEqual([], codes(scheduler.check_candidates(conf, None)))

    def test_the_scheduler_has_to_find_the_package(self):
        for modules, expected in (
            (interpreter.InterpreterModules('p', ('/n',), package='/x'), []),
            (interpreter.InterpreterModules('p', ('/n',)), ['scheduler-package-missing']),
            (interpreter.InterpreterModules('p'), ['scheduler-not-asked']),
        ):
            with self.subTest(modules):
                self.assertEqual(expected, codes(scheduler.check_importable(modules)))
