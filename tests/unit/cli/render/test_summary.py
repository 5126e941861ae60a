# SPDX-License-Identifier: Apache-2.0
"""Samples are summed up by their time, and what is not known stays unknown."""

import json
import math
import statistics
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc.cli.render import report, summary
from tests.fixtures import samples
from tests.fixtures.checkout import TOP

DECK = TOP / 'tests/fixtures/deck'
FLOATS = st.floats(0, 1e6, width=32)


def deck(name):
    """Return the deck's counts per second from one of its two tables."""
    with open(DECK / (name + '.json'), encoding='utf-8') as file:
        table = json.load(file)
    return {event: count / table['elapsed_sec'] for event, count in table['counts'].items()}


class TestSummary(unittest.TestCase):
    @given(st.lists(FLOATS, min_size=1, max_size=30))
    def test_medians_and_percentiles_are_near_those_of_the_values(self, values):
        distribution = summary.distribution([*values, math.nan])
        self.assertAlmostEqual(statistics.median(values), distribution.median, delta=1e-3)
        self.assertLessEqual(distribution.median, distribution.p95 + 1e-6)
        self.assertLessEqual(distribution.p95, max(values))
        self.assertEqual(len(values), distribution.samples)

    def test_a_figure_that_is_never_known_has_no_distribution(self):
        self.assertEqual(
            summary.Distribution(None, None, None, 0), summary.distribution([math.nan])
        )

    def test_samples_are_of_a_window_and_each_time_counts_once(self):
        recorded = summary.gather(
            (samples.sample(taken_s) for taken_s in (1.0, 2.0, 3.0, 2.5, 3.0, 4.0, 5.0)), 2.0, 4.0
        )
        self.assertEqual(
            (3, 2, 2.0, 4.0),
            (recorded.samples, recorded.repeated, recorded.first_s, recorded.last_s),
        )

    def test_a_report_of_samples_without_nodes_has_its_guests(self):
        recorded = summary.gather([samples.sample(nodes=())])
        self.assertIn('median', '\n'.join(report.to_lines(recorded, None)))

    def test_means_weigh_samples_by_their_time(self):
        recorded = summary.gather(
            [
                samples.sample(10.0, 1.0, nodes=(samples.node_sample(waiting_cores=4.0),)),
                samples.sample(20.0, 3.0, nodes=(samples.node_sample(waiting_cores=0.0),)),
                samples.sample(30.0, 9.0, nodes=(samples.node_sample(waiting_cores=None),)),
            ]
        )
        self.assertEqual(1.0, summary.summarise(recorded.nodes.values())['waiting_cores'])

    def test_a_cpi_that_cannot_be_relied_on_is_left_out(self):
        recorded = summary.gather(
            [
                samples.sample(
                    nodes=(
                        samples.node_sample(0, cpi=9.0, cpi_reliable=False),
                        samples.node_sample(1, cpi=2.0),
                    )
                )
            ]
        )
        self.assertEqual(0.5, summary.summarise(recorded.nodes.values())['ipc'])

    def test_instructions_per_cycle_is_of_all_cycles(self):
        # 3 core-seconds at 1 instruction per cycle and 1 at a quarter: 3.25 of 4.
        guests = [
            samples.guest_sample(1, cores=3.0, cpi=1.0),
            samples.guest_sample(1, cores=1.0, cpi=4.0),
        ]
        recorded = summary.gather(
            samples.sample(float(at), 1.0, guests=(guest,)) for at, guest in enumerate(guests)
        )
        (series,) = recorded.guests.values()
        self.assertAlmostEqual(3.25 / 4, summary.summarise([series])['ipc'])

    def test_a_source_with_only_ratios_is_summed_up_by_them(self):
        guests = [
            samples.guest_sample(1, cores=3.0, remote_ratio=0.5, local_per_sec=None),
            samples.guest_sample(1, cores=1.0, remote_ratio=0.1, local_per_sec=None),
        ]
        recorded = summary.gather(
            samples.sample(float(at), 1.0, guests=(guest,)) for at, guest in enumerate(guests)
        )
        (series,) = recorded.guests.values()
        self.assertAlmostEqual(0.4, summary.summarise([series])['remote_ratio'], places=6)

    def test_a_sum_over_a_host_with_an_unknown_node_is_unknown(self):
        recorded = summary.gather(
            [
                samples.sample(
                    nodes=(
                        samples.node_sample(0),
                        samples.node_sample(1, local_per_sec=None, remote_ratio=None),
                    )
                )
            ]
        )
        host = summary.summarise(recorded.nodes.values())
        self.assertIsNone(host['local_per_sec'])
        self.assertEqual(0.1, round(host['remote_ratio'], 6))

    def test_the_summary_gives_the_two_tables_of_the_deck(self):
        def sample(taken_s, name):
            per_sec = deck(name)
            cpi = per_sec['cpu-cycles'] / per_sec['instructions']
            return samples.sample(
                taken_s,
                10.0,
                nodes=tuple(
                    samples.node_sample(
                        n,
                        demand_cores=11.6,
                        cpi=cpi,
                        remote_per_sec=per_sec['r53100f'] / 2,
                        local_per_sec=per_sec['r53080f'] / 2,
                    )
                    for n in (0, 1)
                ),
            )

        recorded = summary.gather([sample(10.0, 'unpinned'), sample(20.0, 'pinned')])
        before = summary.summarise(recorded.nodes.values(), 5.0, 15.0)
        after = summary.summarise(recorded.nodes.values(), 15.0, 25.0)
        self.assertEqual((0.42, 0.47), (round(before['ipc'], 2), round(after['ipc'], 2)))
        self.assertAlmostEqual(56.0, before['remote_per_sec'] / after['remote_per_sec'], delta=0.1)
        self.assertEqual(
            (0.528, 0.0098), (round(before['remote_ratio'], 3), round(after['remote_ratio'], 4))
        )
