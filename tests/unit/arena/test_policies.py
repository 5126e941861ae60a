# SPDX-License-Identifier: Apache-2.0
"""Each policy scores hosts by its formula, and ours as the package's functions do."""

import types
import unittest

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.scheduler import hosts, losses, request
from tests.arena import fleet as fleets, parameters as p, sampling
from tests.arena.policies import nova_weights, others, our_weigher
from tests.fixtures.nova_stand_ins import host_state_of

DEDICATED = types.SimpleNamespace(
    vcpus=8, memory_mib=16384, disk_gb=40, dedicated=True, instance_uuid='7'
)
ASKED = types.SimpleNamespace(
    vcpus=8, memory_mib=16384, disk_gb=40, dedicated=False, instance_uuid='7'
)


def view(half_full=1, **columns):
    """Return hosts of two nodes, calm, half full and blind, with some columns replaced.

    :param half_full: the number of half-full hosts
    """
    count = 3
    fields: dict = {
        'vcpus': np.full(count, 96),
        'cpus': np.full(count, 96),
        'ram_mib': np.full(count, 512 << 10),
        'vcpus_used': np.array([8, 64, 32]),
        'ram_used_mib': np.array([16, 256, 64]) << 10,
        'disk_used_gb': np.array([40, 400, 40]),
        'io_ops': np.array([0, 0, 2]),
        'taken_s': np.array([990.0, 980.0, -np.inf]),
        'recorded_vcpus': np.array([8, 64, 0]),
        'pinned_vcpus': np.array([0, 16, 0]),
        'recorded_pinned': np.array([0, 16, 0]),
        'recorded_mib': np.array([16, 256, 0]) << 10,
        'cores': np.full((count, 2), 30.0),
        'threads': np.full((count, 2), 48),
        'memory_mib': np.full((count, 2), 256 << 10),
        'bandwidth': np.full((count, 2), 100e9),
        'demand': np.array([[1.0, 2.0], [20.0, 12.0], [0.0, 0.0]]),
        'traffic': np.array([[1e9, 2e9], [20e9, 30e9], [0.0, 0.0]]),
        'promised_mib': np.array([[8, 8], [128, 128], [0, 0]]) << 10,
        'node_guests': np.array([[1.0, 1.0], [8.0, 8.0], [0.0, 0.0]]),
        'node_vcpus': np.array([[4.0, 4.0], [32.0, 32.0], [0.0, 0.0]]),
        'turn': np.array([0, 1, 0]),
        'known_guests': np.array([2, 16, 0]),
        'known_sum': np.array([0.75, 8.0, 0.0]),
        'loads_taken': np.array([1, 1, 0]),
        'loads_vcpus': np.array([8, 64, 0]),
        'loads_mib': np.array([16, 256, 0]) << 10,
        'busy_ratio': np.array([0.03, 0.33, 0.0]),
        'busy_deviation': np.array([0.04, 0.01, 0.0]),
    }
    fields.update(columns)
    fields = {name: np.repeat(field, [1, half_full, 1], 0) for name, field in fields.items()}
    fleet = types.SimpleNamespace(
        distance_rows=((10.0, 21.0), (21.0, 10.0)),
        hosts=types.SimpleNamespace(
            cores=fields['cores'],
            bandwidth=fields['bandwidth'],
            distances=np.array([[10.0, 21.0], [21.0, 10.0]]),
        ),
    )
    return fleets.View(fleet, np.arange(2 + half_full), 1000.0, fields)


class OthersTest(unittest.TestCase):
    def test_rivals_know_hosts_without_our_agent(self):
        ours = {'loads_taken': np.ones(3), 'loads_vcpus': np.array([8, 64, 32])}
        for policy in (
            nova_weights.metrics,
            others.target_load_packing,
            others.load_variation_risk_balancing,
            others.ovirt_evenly_distributed,
        ):
            with self.subTest(policy.__name__):
                blind, seen = policy(view(), ASKED), policy(view(**ours), ASKED)
                self.assertEqual(2, blind.argmin())
                self.assertGreater(seen[2], seen[1])

    def oracle(self, cores, fits=True, flying=0.0, lines=1e7):
        """Return the oracle's scores; the first host's guests want 28 and 20 of 30 cores."""
        known = view(demand=np.full((3, 2), np.nan))
        nodes = np.array([[28.0, 20.0], [10.0, 29.0], [24.0, 24.0]])
        known.fleet = types.SimpleNamespace(
            true_nodes=nodes,
            true_cores=nodes.sum(1) + np.array([0.0, flying, 0.0]),
            promised_mib=np.full((3, 2), (100 if fits else 255) << 10),
            taken_mib=np.full(3, (200 if fits else 510) << 10),
            hosts=types.SimpleNamespace(far_ns=np.array([[0.0, 40.0], [40.0, 0.0]])),
        )
        asked = types.SimpleNamespace(
            vcpus=8,
            memory_mib=16384,
            dedicated=False,
            true_cores=cores,
            true_bytes=64 * lines * cores,
        )
        return others.oracle(known, asked)

    def test_the_oracle_takes_the_node_on_which_a_guest_adds_least_waiting(self):
        self.assertEqual(1, self.oracle(6.0).argmax())


class OursTest(unittest.TestCase):
    def losses(self, seen, asked=ASKED):
        """Return the losses as computed by the package's functions alone."""
        guest = request.Guest(asked.vcpus, asked.memory_mib)
        if asked.dedicated:
            guest = request.Guest(0, 0, model.SPREAD)
        record = {name: getattr(seen, name) for name in sampling.PUBLISHED}
        record['distances'] = seen.fleet.distance_rows
        known = []
        for host in range(len(seen.at)):
            reported = seen.taken_s[host] > -np.inf
            pinned = set(range(int(seen.pinned_vcpus[host])))
            cell = types.SimpleNamespace(cpuset=set(), pinned_cpus=pinned, mempages=[])
            ram_mib = int(seen.ram_mib[host]) - p.RESERVED_MIB
            host_state = host_state_of(
                sampling.numa_metrics(record, host) if reported else [],
                vcpus_used=int(seen.vcpus_used[host]),
                vcpus_total=int(seen.vcpus[host]),
                total_usable_ram_mb=ram_mib,
                free_ram_mb=ram_mib - int(seen.ram_used_mib[host]),
                numa_topology=types.SimpleNamespace(cells=[cell]),
                updated=None,
            )
            asked_for = request.GuestRequest(guest)
            known.append(hosts.read(host_state, asked_for, sampling.EPOCH_S + seen.now_s))
        return [loss.ratio for loss in losses.compare(known, guest)]

    def test_arrays_say_what_the_package_says(self):
        for name, columns in (
            ('usual', {}),
            ('came', {'vcpus_used': np.array([24, 64, 32])}),
            (
                'came twice',
                {
                    'vcpus_used': np.array([24, 95, 32]),
                    'ram_used_mib': np.array([48, 300, 64]) << 10,
                },
            ),
            (
                'came small',
                {
                    'vcpus_used': np.array([9, 65, 32]),
                    'ram_used_mib': np.array([16, 257, 64]) << 10,
                },
            ),
            (
                'came large',
                {
                    'vcpus_used': np.array([224, 364, 32]),
                    'ram_used_mib': np.array([316, 500, 64]) << 10,
                },
            ),
            ('left', {'vcpus_used': np.array([4, 64, 32])}),
            ('stale', {'taken_s': np.array([990.0, 600.0, -np.inf])}),
            ('ahead', {'taken_s': np.array([990.0, 1400.0, 1290.0])}),
            ('full', {'promised_mib': np.array([[8, 8], [250, 250], [0, 0]]) << 10}),
            (
                'memory left nowhere',
                {'promised_mib': np.array([[8, 8], [256, 256], [0, 0]]) << 10},
            ),
            ('blind and full', {'ram_used_mib': np.array([16, 256, 500]) << 10}),
            ('blind and crowded', {'vcpus_used': np.array([8, 64, 300])}),
            ('blind and dedicated', {'pinned_vcpus': np.array([0, 16, 24])}),
            ('all blind', {'taken_s': np.full(3, -np.inf)}),
            ('none blind', {'taken_s': np.full(3, 990.0)}),
            ('absurd', {'demand': np.array([[1000.0, 2000.0], [20.0, 12.0], [0.0, 0.0]])}),
            ('bandwidth', {'traffic': np.array([[99e9, 99e9], [20e9, 30e9], [0.0, 0.0]])}),
            (
                'more bandwidth than there is',
                {'traffic': np.array([[1e9, 2e9], [3e11, 0.0], [0, 0]])},
            ),
            (
                'more traffic than its cores can cause',
                {
                    'bandwidth': np.full((3, 2), 1e13),
                    'traffic': np.array([[1e11, 2e11], [2e12, 3e12], [0.0, 0.0]]),
                },
            ),
            ('few known', {'half_full': 10, 'taken_s': np.array([990.0, -np.inf, -np.inf])}),
            ('equal', {'demand': np.full((3, 2), 3.0), 'traffic': np.full((3, 2), 1e9)}),
        ):
            for asked in (ASKED, DEDICATED):
                with self.subTest((name, asked.dedicated)):
                    seen = view(**columns)
                    np.testing.assert_allclose(
                        self.losses(seen, asked), our_weigher.losses(seen, asked), atol=1e-12
                    )

    def test_arrays_say_what_the_package_says_of_a_guest_that_fits_on_no_node(self):
        large = types.SimpleNamespace(**{**vars(ASKED), 'vcpus': 60, 'memory_mib': 65536})
        seen = view()
        found = our_weigher.losses(seen, large)
        np.testing.assert_allclose(self.losses(seen, large), found)
        # On each host, half of its lines come from the other node.
        self.assertGreater(found.min(), 0.01)

    def test_an_odd_host_changes_nothing_of_what_another_gets(self):
        # Guests are alike on all known hosts, so that some of them say as much as all. Of five
        # hosts, one does not influence the upper quartile of memory.
        alike = {
            'half_full': 4,
            'known_guests': np.array([16, 16, 0]),
            'known_sum': np.array([8.0, 8.0, 0.0]),
            'traffic': np.array([[3e9, 2e9], [20e9, 30e9], [0.0, 0.0]]),
        }
        expected = our_weigher.numa_pressure(view(**alike), ASKED)
        for odd in (0.0, 50.0, 1e5):
            demand = np.array([[odd, odd], [20.0, 12.0], [0.0, 0.0]])
            # The traffic of its memory is larger in proportion to its demand.
            traffic = np.array([[odd * 2e9] * 2, [20e9, 30e9], [0.0, 0.0]])
            seen = view(**{**alike, 'demand': demand, 'traffic': traffic})
            penalties = our_weigher.numa_pressure(seen, ASKED)
            np.testing.assert_allclose(expected[1:], penalties[1:])
            self.assertEqual(6, len(penalties))
