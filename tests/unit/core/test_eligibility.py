# SPDX-License-Identifier: Apache-2.0
"""Test the reasons for which a guest must not be touched."""

import unittest

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.core.eligibility import MOVE, PROCEED, why_not
from tests.fixtures.model_records import guest

PROMISE = model.Promise('uuid-g', 'g', (0,), (0,), 2, 1 << 30, since_ns=7, started=True)
#: CPU 3 is outside the floating pool.
HOST = model.Topology(
    (
        model.Node(0, frozenset({0, 1}), 1 << 30),
        model.Node(1, frozenset({2}), 1 << 30, usable_cpus=frozenset({2, 3})),
    ),
    (),
    (),
)
#: (code, the guest, its promise) for each rule, in the table's order.
CASES = (
    ('pinned_by_operator', guest('g', override=model.PIN), PROMISE),
    ('ignored', guest('g', override=model.IGNORE), PROMISE),
    ('active_job', guest('g', job='migration out', state='running'), PROMISE),
    ('paused', guest('g', state='paused'), PROMISE),
    ('other_pool', guest('g', allowed_cpus=frozenset({1, 3})), PROMISE),
    ('unknown', guest('g'), None),
    ('starting', guest('g'), PROMISE._replace(started=False)),
    ('placed_by_others', guest('g', placed_by=('numatune',)), PROMISE),
    ('policy_none', guest('g', extra_specs=(('numa_pmc:policy', 'none'),)), PROMISE),
    ('spread', guest('g', extra_specs=(('numa_pmc:policy', 'spread'),)), PROMISE),
    ('stays', guest('g', extra_specs=(('numa_pmc:policy', 'stay'),)), PROMISE),
    ('locked', guest('g', locked=True), PROMISE),
    ('huge_pages', guest('g', page_bytes=2 << 20), PROMISE),
    ('bound', guest('g'), PROMISE._replace(bound=True)),
    ('memory_limited', guest('g', granted_mems=frozenset({0})), PROMISE),
)


class WhyNotTest(unittest.TestCase):
    def test_each_rule_gives_its_code(self):
        of_moves = [rule.code for rule in eligibility.RULES if MOVE in rule.actions]
        self.assertEqual(of_moves, [code for code, *_ in CASES])
        for code, one, promise in CASES:
            with self.subTest(code):
                self.assertEqual(code, why_not(MOVE, one, promise, HOST))

    def test_a_guest_that_may_be_touched_has_no_code(self):
        for one in (
            guest('g'),
            guest('g', state='running'),
            guest('g', extra_specs=(('numa_pmc:policy', 'one_node'),)),
            guest('g', allowed_cpus=frozenset({0, 2})),
        ):
            self.assertEqual('', why_not(MOVE, one, PROMISE, HOST))

    def test_the_first_rule_that_applies_gives_the_reason(self):
        one = guest('g', override='pin', job='save', state='paused', locked=True)
        self.assertEqual('pinned_by_operator', why_not(MOVE, one, None, HOST))
        self.assertEqual('active_job', why_not(MOVE, one._replace(override=''), None, HOST))
        one = guest('g', locked=True, allowed_cpus=frozenset({3}))
        self.assertEqual('other_pool', why_not(MOVE, one, None, HOST))
        self.assertEqual('unknown', why_not(MOVE, one, None))
        self.assertEqual('locked', why_not(MOVE, one, PROMISE))

    def test_a_guest_that_had_not_settled_when_the_interval_began_is_starting(self):
        settled_ns = PROMISE.since_ns + eligibility.SETTLING_NS
        for began_ns, code in ((None, ''), (settled_ns - 1, 'starting'), (settled_ns, '')):
            self.assertEqual(code, why_not(MOVE, guest('g'), PROMISE, HOST, began_ns))

    def test_a_flavor_may_have_its_guests_placed_and_held_but_never_moved(self):
        one = guest('g', extra_specs=(('numa_pmc:policy', 'stay'),))
        for action, code in (
            (eligibility.PLACE, ''),
            (eligibility.HOLD, ''),
            (eligibility.FETCH, 'stays'),
            (MOVE, 'stays'),
            (PROCEED, ''),
        ):
            self.assertEqual(code, why_not(action, one, PROMISE, HOST))

    def test_a_move_goes_on_unless_the_operator_libvirt_or_others_stand_against_it(self):
        against: tuple[str, ...] = ('pinned_by_operator', 'ignored', 'active_job', 'paused')
        against += ('placed_by_others', 'locked')
        for code, one, _ in CASES:
            with self.subTest(code):
                self.assertEqual(code if code in against else '', why_not(PROCEED, one))

    def test_a_guest_pinned_by_others_is_not_reported_as_of_another_pool(self):
        one = guest('g', allowed_cpus=frozenset({3}), placed_by=('vcpupin',))
        self.assertTrue(eligibility.is_in_pool(one, HOST))
        self.assertEqual('placed_by_others', why_not(MOVE, one, PROMISE, HOST))

    def test_nothing_is_done_to_a_guest_of_which_nothing_is_known(self):
        self.assertEqual('unknown', why_not(MOVE, None, PROMISE, HOST))
