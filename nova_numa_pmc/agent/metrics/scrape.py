# SPDX-License-Identifier: Apache-2.0
"""The record that the loop hands to a scrape; needs no prometheus_client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.agent.tick import Tick


class Scrape(Record):
    """The values of a scrape.

    :param guests: as in :class:`metrics_conf.MetricsOptions`
    :param ticks: number of ticks so far
    :param seconds: how long all of them took [s]
    """

    tick: Tick
    guests: bool
    ticks: int
    seconds: float
