# SPDX-License-Identifier: Apache-2.0
"""The values of a scrape: handed over by the loop, without prometheus_client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.agent.tick import Tick


class Scrape(Record):
    """The values of a scrape.

    :param guests: as in :class:`metrics_conf.MetricsOptions`
    :param ticks: how many there have been, and the ``seconds`` that all of them took
    """

    tick: Tick
    guests: bool
    ticks: int
    seconds: float
