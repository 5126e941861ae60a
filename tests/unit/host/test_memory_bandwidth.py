# SPDX-License-Identifier: Apache-2.0
"""The maximum of each node's memory follows from clocks, modules or the operator's option."""

import os

from hypothesis import given, strategies as st

from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import firmware
from nova_numa_pmc.host.firmware import EFFICIENCY, Dimms, maxima_bytes_per_sec
from tests.cases.root import RootCase
from tests.fixtures.fake_pmus import dmi_table, memory_device

DDR4_2933 = Dimms(12, 2933e6)
EQUAL = {0: 96 << 30, 1: 96 << 30}


class TestMaxima(RootCase):
    def test_the_clock_of_six_channels_is_the_maximum(self):
        clock = 6 * 1466.5e6 * 16
        self.assertEqual(
            {0: EFFICIENCY * clock, 1: EFFICIENCY * clock},
            maxima_bytes_per_sec({}, {0: clock, 1: clock}, {0: 6, 1: 6}, None, EQUAL),
        )

    def test_channels_without_modules_carry_nothing_though_their_clock_runs(self):
        clock = 6 * 1466.5e6 * 16
        maxima = maxima_bytes_per_sec(
            {}, {0: clock, 1: clock}, {0: 6, 1: 6}, Dimms(8, 2933e6), EQUAL
        )
        self.assertAlmostEqual(EFFICIENCY * 4 * 2933e6 * 8, maxima[0], delta=1)

    def test_without_clocks_channels_and_speed_tell(self):
        for number, channels in ((16, 8), (32, 8), (8, 4)):  # one, two a channel; half populated
            with self.subTest(number=number):
                maxima = maxima_bytes_per_sec({}, {}, {0: 8, 1: 8}, Dimms(number, 3200e6), EQUAL)
                self.assertAlmostEqual(EFFICIENCY * channels * 3200e6 * 8, maxima[1], delta=1)

    def test_the_operators_option_comes_first(self):
        self.assertEqual(
            {0: 5e9, 1: EFFICIENCY * 1e9},
            maxima_bytes_per_sec({0: 5e9}, {0: 1e9, 1: 1e9}, {0: 1, 1: 1}, None, EQUAL),
        )

    def test_without_anything_it_is_unknown(self):
        self.assertEqual({}, maxima_bytes_per_sec({}, {}, {}, None, EQUAL))
        self.assertEqual({}, maxima_bytes_per_sec({}, {}, {}, DDR4_2933, EQUAL))
        self.assertEqual({}, maxima_bytes_per_sec({}, {}, {0: 6, 1: 6}, None, EQUAL))


class TestDimms(RootCase):
    def dimms(self, *structures):
        path = os.path.join(self.root, 'sys/firmware/dmi/tables')
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, 'DMI'), 'wb') as file:
            file.write(dmi_table(*structures))
        return firmware.read_dimms(self.root)

    def test_the_slowest_of_the_modules_in_use_determines_the_speed(self):
        self.assertEqual(
            Dimms(2, 2666e6),
            self.dimms(
                memory_device(2933),
                memory_device(2666),
                memory_device(0, size=0),  # an empty slot
                memory_device(1600, technology=7),  # persistent memory
            ),
        )

    def test_a_table_that_cannot_be_read_is_a_problem(self):
        os.makedirs(os.path.join(self.root, 'sys/firmware/dmi/tables/DMI'))
        with self.assertRaisesRegex(TopologyError, 'tables/DMI: .*run as root'):
            firmware.read_dimms(self.root)

    @given(st.binary(max_size=200))
    def test_garbage_is_unknown(self, garbage):
        dimms = self.dimms(garbage)
        self.assertTrue(dimms is None or dimms.number > 0)
