# SPDX-License-Identifier: Apache-2.0
"""Records of a tick of the agent: its time, and what the agent has read and measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.host import files
from nova_numa_pmc.moves import executor
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc import model
    from nova_numa_pmc.core.fleet import FleetHost
    from nova_numa_pmc.core.sample_records import Sample
    from nova_numa_pmc.state import pause
    from nova_numa_pmc.state.promises_file import HostPromises
    from nova_numa_pmc.state.publication import Publication


class Moment(Record):
    """One moment by three clocks.

    :param monotonic_ns: CLOCK_MONOTONIC, for intervals
    :param boottime_ns: CLOCK_BOOTTIME, which includes suspends, for ages
    :param realtime_s: CLOCK_REALTIME [s since the epoch], for times that other programs read
    """

    monotonic_ns: int
    boottime_ns: int
    realtime_s: float

    @classmethod
    def read(cls) -> Moment:
        """Read the clocks."""
        return cls(time.monotonic_ns(), files.boottime_ns(), time.time())


class Tick(Record):
    """The results of a tick's stages; None: unknown.

    :param host_promises: the promises
    :param guests: the running guests
    :param publication: the publication; None: there is none in this tick
    :param totals: the counts of moves at the end of the tick
    :param failing_count: number of stages that currently fail
    :param paused: since when, and why, the agent has been paused; None: it is not paused
    :param starts_taken_over: number of starts that the agent has finished for the hook
    :param guests_moved: whether guests were moved during the interval of the sample
    :param moving: uuids of the guests that a command is moving
    :param moves_stopped: whether no memory is moved because the last moves did not pay
    :param fleet_host: the host as a plan for the fleet sees it; None: nothing was published
    """

    now: Moment
    sample: Sample | None = None
    host: model.Topology | None = None
    host_promises: HostPromises | None = None
    guests: tuple[model.Guest, ...] = ()
    publication: Publication | None = None
    totals: executor.MoveTotals = executor.MoveTotals()
    failing_count: int = 0
    paused: pause.Paused | None = None
    starts_taken_over: int = 0
    guests_moved: bool = False
    moving: frozenset[str] = frozenset()
    moves_stopped: bool = False
    fleet_host: FleetHost | None = None
