# SPDX-License-Identifier: Apache-2.0
"""A Nova service that has no configuration, or has not read its changes, is found."""

import os

from nova_numa_pmc.checks import service
from nova_numa_pmc.finding import ERROR, NOTE, WARNING
from nova_numa_pmc.host import nova_conf, services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write


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
                findings = service.check_service(
                    'nova-compute', process, nova_conf.NovaConf([]), required
                )
                self.assertEqual(
                    expected, [(finding.code, finding.severity) for finding in findings]
                )

    def test_a_service_whose_program_others_can_change_is_a_warning(self):
        findings = service.check_service(
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
                findings = service.check_restarted(process, conf, {conf.files[0]: changed_s})
                self.assertEqual(expected, [finding.code for finding in findings])
        self.assertEqual([], list(service.check_restarted(None, conf, {conf.files[0]: 9_999})))
