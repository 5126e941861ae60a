# SPDX-License-Identifier: Apache-2.0
"""A publication that is missing, stale or damaged is found, and so is a paused agent."""

import os

from nova_numa_pmc.checks import publication as publication_checks
from nova_numa_pmc.host import files, nova_conf, services
from nova_numa_pmc.state import move_lock, pause, publication
from tests.cases.root import RootCase
from tests.fixtures import model_records
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

NOW_S = 1_800_000_000


class PublishedTest(RootCase):
    def setUp(self):
        super().setUp()
        self.state = os.path.join(self.root, 'run/nova-numa-pmc')

    def codes(self, *conf_files):
        conf = nova_conf.NovaConf(list(conf_files))
        findings = publication_checks.check_publication(self.state, NOW_S, conf)
        return [finding.code for finding in findings]

    def publish(self, age_s, interval_s=10, **more):
        os.makedirs(os.path.dirname(self.state), exist_ok=True)
        publication.write(
            self.state,
            publication.Publication(
                NOW_S - age_s,
                interval_s,
                model_records.counted_empty_host(),
                source='guests',
                **more,
            ),
        )

    def test_a_publication_that_is_stale_or_from_the_future_is_found(self):
        for age_s, interval_s, expected in (
            (0, 10, []),
            (29, 5, []),
            (31, 5, ['publication-stale']),
            (100, 60, []),
            (181, 60, ['publication-stale']),
            (2_000, 3_600, ['publication-stale']),
            (-20, 10, []),
            (-90, 10, ['publication-from-the-future']),
        ):
            with self.subTest(age_s=age_s, interval_s=interval_s):
                self.publish(age_s, interval_s)
                self.assertEqual(expected, self.codes())

    def test_a_paused_agent_is_found_with_its_reason(self):
        root = os.path.dirname(self.state)
        self.assertEqual([], list(publication_checks.check_paused(root)))
        os.makedirs(os.path.join(root, 'var/lib'))
        pause.begin(root, 'firmware')
        [finding] = publication_checks.check_paused(root)
        self.assertEqual('agent-paused', finding.code)
        self.assertIn('firmware', finding.message)

    def test_a_process_that_does_not_go_on_with_its_moves_is_found(self):
        os.makedirs(os.path.dirname(self.state))
        long_ago_ns = files.boottime_ns() - int(2e9 * move_lock.LEASE_S)
        with move_lock.MoveLock(self.state, 'apply', lambda: long_ago_ns):
            [finding] = publication_checks.check_turns(self.state)
            self.assertEqual('mover-suspended', finding.code)
            self.assertIn('apply (process %d) has not gone on' % os.getpid(), finding.message)
        self.assertEqual([], list(publication_checks.check_turns(self.state)))

    def test_cpu_sets_that_the_agent_does_not_know_are_found(self):
        for text, source, codes in (
            ('', 'kernel', []),
            ('[compute]\ncpu_shared_set = 0\n', 'nova.conf', []),
            ('[compute]\ncpu_shared_set = 0\n', '', []),
            ('[compute]\ncpu_shared_set = 0\n', 'kernel', ['cpu-sets-not-read']),
            ('[compute]\ncpu_dedicated_set = 1\n', 'guests', ['cpu-sets-not-read']),
            ('[DEFAULT]\nvcpu_pin_set = 0\n', 'nova.conf', []),
            ('[DEFAULT]\nvcpu_pin_set = 0\n', 'guests', ['cpu-sets-not-read']),
        ):
            with self.subTest(text=text, source=source):
                self.publish(0, pool_source=source)
                write(self.root, 'nova.conf', text)
                self.assertEqual(codes, self.codes(os.path.join(self.root, 'nova.conf')))

    def test_a_missing_publication_is_found(self):
        self.assertEqual(['publication-missing'], self.codes())

    def test_a_damaged_publication_is_found(self):
        self.publish(0)
        write(self.state, publication.FILE, '{"schema": "1.0"')
        self.assertEqual(['publication-unreadable'], self.codes())

    def test_a_state_directory_missing_in_novas_container_is_found(self):
        add_process(self.root, 9, ('/usr/bin/python3', '/usr/bin/nova-compute'), inside='image')
        process = services.find(self.root, 'nova-compute')
        (finding,) = publication_checks.check_visible('/run/nova-numa-pmc', process)
        self.assertEqual('publication-not-in-container', finding.code)
        write(self.root, 'image/run/nova-numa-pmc/host', '{}')
        self.assertEqual([], list(publication_checks.check_visible('/run/nova-numa-pmc', process)))
        self.assertEqual([], list(publication_checks.check_visible('/run/nova-numa-pmc', None)))
