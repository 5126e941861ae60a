# SPDX-License-Identifier: Apache-2.0
"""A flavor's metadata is read as several releases of Nova write it (LibvirtConfigGuest)."""

import pathlib
import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import extra_specs, host_view
from nova_numa_pmc.host import guests
from tests.fixtures.model_records import PLACEMENT_OPTIONS

SAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'fixtures/nova_xml'
#: Of one flavor (policy=spread, max_pressure=0.8, memory_intensity=high). Nova 29 and 31 write the
#: first form, Nova 33 and 34 the second, which has the extra specs.
WITHOUT, WITH_SPECS = '29.4.0', '34.0.0'


def parsed(release):
    return guests.parse((SAMPLES / (release + '.xml')).read_bytes())


class NovaMetadataTest(unittest.TestCase):
    def test_the_flavors_name_is_in_the_metadata_of_all_releases(self):
        for release in (WITHOUT, WITH_SPECS):
            with self.subTest(release):
                guest = parsed(release)
                self.assertEqual(
                    ('m1.spread', 2, 2 << 30), (guest.flavor, guest.vcpus, guest.memory_bytes)
                )

    def test_extra_specs_in_metadata_are_taken_as_hints(self):
        guest = parsed(WITH_SPECS)
        self.assertEqual(('spread', 0.8, 'high', ()), extra_specs.parse(guest.extra_specs))
        self.assertEqual((), guest.placed_by)
        history = model.DemandHistory(bytes_per_core_sec=1e9)
        asked = host_view.request(guest, PLACEMENT_OPTIONS, history=history)
        self.assertEqual(
            (model.SPREAD, 3e9 * asked.demand_cores), (asked.policy, asked.bandwidth_bytes_per_sec)
        )
