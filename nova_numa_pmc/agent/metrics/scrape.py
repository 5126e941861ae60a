# SPDX-License-Identifier: Apache-2.0
"""The record that the loop hands to a scrape; this module does not need prometheus_client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.agent.tick import Tick


class Scrape(Record):
    """The values that a scrape serves.

    :param tick: the last tick
    :param with_guests: whether metrics of each guest are served
    :param ticks: number of ticks so far
    :param duration_s: total duration of these ticks [s]
    """

    tick: Tick
    with_guests: bool
    ticks: int
    duration_s: float
