# SPDX-License-Identifier: Apache-2.0
"""Our extra specs of a flavor are obeyed, from Nova's API to the choice of a host."""

from nova.tests.functional.api import client

from tests.nova import base


class FlavorTest(base.NovaTest):
    def test_the_api_takes_what_the_scheduler_understands(self):
        for key, good, bad in (
            ('policy', 'one_node', 'everywhere'),
            ('max_pressure', '0.8', 'NaN'),
            ('memory_intensity', 'high', 'maximal'),
            ('no_such_key', None, '1'),
        ):
            with self.subTest(key):
                if good:
                    self.flavor(**{f'numa_pmc__{key}': good})
                error = self.assertRaises(
                    client.OpenStackApiException, self.flavor, **{f'numa_pmc__{key}': bad}
                )
                self.assertEqual(400, error.response.status_code)

    def test_a_flavor_has_a_limit_of_its_own(self):
        self.start_hosts('one')
        self.send(one=(0.6, 0.6))
        self.boot(self.flavor())
        self.boot(self.flavor(numa_pmc__max_pressure='0.5'), expected_state='ERROR')

    def test_a_flavor_of_one_node_finds_the_host_that_has_it(self):
        self.start_hosts('halves', 'whole')
        self.publish('halves', 0.1, 0.1, promised_mb=(4096, 4096))
        self.publish('whole', 0.6, 0.6, promised_mb=(8192, 0))
        self._run_periodics()
        self.assertEqual(
            'whole',
            self.host_of(self.boot(self.flavor(memory_mb=6144, numa_pmc__policy='one_node'))),
        )
        self.boot(self.flavor(memory_mb=6144, numa_pmc__policy='one_node'), expected_state='ERROR')

    def test_a_deleted_guest_of_one_node_is_created_again_before_the_next_audit(self):
        self.start_hosts('one')
        flavor = self.flavor(memory_mb=6144, numa_pmc__policy='one_node')
        server = self.boot(flavor)
        self.publish('one', 0.1, 0.1, promised_mb=(6144, 6144))
        self._run_periodics()
        self.boot(flavor, expected_state='ERROR')
        self._delete_server(server)
        self.boot(flavor)

    def test_one_request_creates_as_many_guests_of_one_node_as_fit(self):
        self.flags(cpu_allocation_ratio=16.0)
        self.start_hosts('one')
        # Five fit on each of the nodes, of 8192 MiB.
        flavor = self.flavor(memory_mb=1500, numa_pmc__policy='one_node')
        self.boot_many(flavor, 10)
        self.boot(flavor, expected_state='ERROR')

    def test_a_flavor_without_policy_is_left_to_nova(self):
        self.flags(max_pressure=1.0, group='numa_pmc')
        self.start_hosts('one')
        self.send(one=(3.0, 3.0))
        self.boot(self.flavor(), expected_state='ERROR')
        self.boot(self.flavor(numa_pmc__policy='none'))
