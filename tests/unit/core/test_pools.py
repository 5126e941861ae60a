# SPDX-License-Identifier: Apache-2.0
"""Test which CPUs guests share, and which pools they load."""

import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import pools

NODES = (frozenset(range(8)), frozenset(range(8, 16)))
ALL = NODES[0] | NODES[1]


def host(*usable):
    """Build a host of two nodes of eight CPUs."""
    sets = usable or NODES
    return model.Topology(
        tuple(
            model.Node(at, cpus, online_cpus=NODES[at], usable_cpus=cpus)
            for at, cpus in enumerate(sets)
        ),
        (),
        (),
    )


def guest(number=1, allowed=None, pins=(), flavor='m1.small', placed_by=(), vcpus=2):
    """Build a guest; ``pins`` has a CPU for each vCPU that is pinned."""
    return model.Guest(
        'u%d' % number,
        'g%d' % number,
        vcpus,
        1,
        flavor=flavor,
        allowed_cpus=None if allowed is None else frozenset(allowed),
        placed_by=placed_by or (('vcpupin', 'emulatorpin') if pins else ()),
        pinned_cpus=frozenset(pins) or None,
        pins=tuple(('vcpu%d' % at, frozenset((cpu,))) for at, cpu in enumerate(sorted(pins))),
    )


class FloatingTest(unittest.TestCase):
    def pool_of(self, *guests, usable=(), **sets):
        pool = pools.floating_pool(
            host(*usable), guests, **{name: frozenset(cpus) for name, cpus in sets.items()}
        )
        return sorted(pool.cpus), pool.source

    def test_the_floating_pool_is_what_nova_conf_says(self):
        dedicated = guest(1, pins=(2, 3))
        self.assertEqual(
            ([0, 1, 8, 9], 'nova.conf'),
            self.pool_of(dedicated, shared=(0, 1, 8, 9), dedicated=(2, 3)),
        )
        self.assertEqual(
            ([*range(8)], 'nova.conf'), self.pool_of(dedicated, dedicated=range(8, 16))
        )

    def test_isolated_cpus_are_in_no_pool(self):
        usable = (frozenset((0, 1)), NODES[1])
        self.assertEqual(([0, 8], 'nova.conf'), self.pool_of(usable=usable, shared=(0, 4, 8)))
        self.assertEqual(([0, 1, *range(8, 16)], 'kernel'), self.pool_of(usable=usable))

    def test_a_set_that_has_none_of_the_usable_cpus_is_not_believed(self):
        self.assertEqual(([*range(16)], 'kernel'), self.pool_of(shared=(77,)))
        self.assertEqual(([*range(16)], 'kernel'), self.pool_of(dedicated=range(16)))

    def test_the_floating_pool_is_the_set_that_all_novas_guests_have(self):
        shared = (0, 1, 8, 9)
        alike = [guest(1, shared), guest(2, shared), guest(3, pins=(2, 3))]
        self.assertEqual((list(shared), 'guests'), self.pool_of(*alike))
        # A guest that may run anywhere, or elsewhere: there is no common set.
        for other in (guest(4), guest(4, (0, 1))):
            self.assertEqual(
                ([cpu for cpu in range(16) if cpu not in (2, 3)], 'guests'),
                self.pool_of(*alike, other),
            )

    def test_cpus_of_dedicated_guests_are_not_in_the_floating_pool(self):
        without = ([0, 1, *range(4, 16)], 'guests')
        for dedicated in (
            guest(pins=(2, 3)),
            guest(pins=(2, 3), flavor=None),
            guest(pins=(2, 3), vcpus=4, placed_by=('vcpupin', 'dedicated')),
        ):
            self.assertEqual(without, self.pool_of(dedicated))

    def test_a_vcpu_pinned_by_hand_takes_no_cpu_from_others(self):
        for by_hand in (
            guest(pins=(2,), vcpus=2),
            guest(pins=(2, 3), flavor=None, placed_by=('vcpupin',)),
        ):
            self.assertEqual(([*range(16)], 'kernel'), self.pool_of(by_hand))

    @given(
        st.lists(
            st.builds(
                guest,
                st.integers(1, 9),
                st.none() | st.frozensets(st.integers(0, 20)),
                st.frozensets(st.integers(0, 20)),
                st.sampled_from((None, 'm1')),
            )
        ),
        st.none() | st.frozensets(st.integers(0, 20)),
        st.none() | st.frozensets(st.integers(0, 20)),
    )
    def test_the_floating_pool_is_always_of_usable_cpus(self, guests, shared, dedicated):
        pool = pools.floating_pool(host(), tuple(guests), shared, dedicated)
        self.assertTrue(pool.cpus and pool.cpus <= ALL)
        nodes = pools.with_floating_pool(host(), pool).nodes
        self.assertEqual(pool.cpus, nodes[0].cpus | nodes[1].cpus)


class GuestsPoolTest(unittest.TestCase):
    POOL = pools.Pool(frozenset((0, 1, 8, 9)), pools.NOVA)

    def setUp(self):
        self.host = pools.with_floating_pool(host(), self.POOL)

    def test_a_guest_may_use_its_own_set_or_the_floating_pool(self):
        for allowed, flavor, cpus in (
            (None, 'm1.small', {0, 1}),
            ((0, 4, 12), 'm1.small', {0}),  # Nova's set has shrunk since the guest started
            ((0, 4, 12), None, {0, 4}),  # not one of Nova's: its operator's word counts
            ((4, 5), 'm1.small', {4, 5}),  # nothing in common: its own
            ((12, 13), 'm1.small', set()),
        ):
            one = guest(allowed=allowed, flavor=flavor)
            self.assertEqual(cpus, pools.cpus_on((0,), self.host, one), (allowed, flavor))

    def test_a_guest_that_loads_none_of_the_floating_pool_avoids_it(self):
        for one, avoids in (
            (guest(), False),
            (guest(allowed=(1, 2)), False),
            (guest(allowed=(4, 5)), True),
            (guest(pins=(4, 5)), True),
            (guest(pins=(0, 1)), True),  # dedicated CPUs, from whichever set
            (guest(pins=(4,)), False),  # its other vCPU is not pinned
            (guest(pins=(0, 1), flavor=None, placed_by=('vcpupin',)), False),
        ):
            with self.subTest(one=one):
                self.assertEqual(avoids, pools.avoids_floating_pool(one, self.host))
