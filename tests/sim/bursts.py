# SPDX-License-Identifier: Apache-2.0
"""Simulate equal hosts whose guests want all of their cores in bursts, and none in between."""

from __future__ import annotations

import random

from nova_numa_pmc import model
from nova_numa_pmc.core.demand import lasting_demand
from nova_numa_pmc.core.demand.histories import Histories
from nova_numa_pmc.sample_records import GuestSample, NodeSample, Sample

CORES, GUESTS, VCPUS = 16, 8, 4
#: Fraction of the time in which a guest wants its cores: a quarter of the host's are wanted.
BUSY = 0.125
TRUE_RATIO = GUESTS * VCPUS * BUSY / CORES
INTERVAL_S, COARSE_S, FINE_MINUTES = 5.0, 60.0, 5
_OLD_NS, _NOW_NS = 0, 10**15
_PLACEMENT_OPTIONS = model.PlacementOptions()
_HOST = model.Topology(
    (model.Node(0, frozenset(range(CORES)), 1 << 40),),
    ((10,),),
    tuple(frozenset({cpu}) for cpu in range(CORES)),
)
_NAMES = tuple('g%d' % at for at in range(GUESTS))
_PROMISES = {
    name: model.Promise(name, name, (0,), (0,), VCPUS, 1 << 30, since_ns=_OLD_NS, started=True)
    for name in _NAMES
}
_GUESTS = {name: model.Guest(name, name, VCPUS, 1 << 30) for name in _NAMES}


class BurstingGuest:
    """A guest with bursts and pauses of exponential length."""

    def __init__(self, rng: random.Random, burst_s: float) -> None:
        self._rng, self._burst_s = rng, burst_s
        self.begin(BUSY)

    def begin(self, busy: float) -> None:
        """Set the fraction of the time in which the cores are wanted from now on."""
        self._busy = busy
        self._on = self._rng.random() < busy
        self._left_s = self._length_s()

    def _length_s(self):
        mean_s = self._burst_s if self._on else self._burst_s * (1 - self._busy) / self._busy
        return self._rng.expovariate(1 / mean_s)

    def run(self, seconds: float) -> float:
        """Let time pass; return the mean of the cores that it wanted."""
        wanted_s, left_s = 0.0, seconds
        while left_s > 0:
            part_s = min(left_s, self._left_s)
            wanted_s += part_s * self._on
            left_s -= part_s
            self._left_s -= part_s
            if self._left_s <= 0:
                self._on = not self._on
                self._left_s = self._length_s()
        return VCPUS * wanted_s / seconds


class BurstingHost:
    """One node with its guests, measured every five seconds.

    To save time, it is measured once a minute except in the last minutes of a run.

    :ivar last_5_s: pressure over the last five seconds; ``longer``: over the longer horizon
    """

    def __init__(self, seed: object, burst_s: float) -> None:
        rng = random.Random(repr(seed))
        self.guests = [BurstingGuest(rng, burst_s) for _ in range(GUESTS)]
        self._histories = Histories()
        self.last_5_s: float | None = None
        self.longer: float | None = None

    def run(self, minutes: int) -> None:
        """Let this number of minutes pass."""
        fine = min(minutes, FINE_MINUTES)
        for _ in range(minutes - fine):
            self._measure(COARSE_S)
        for _ in range(round(fine * 60 / INTERVAL_S)):
            wanted = self._measure(INTERVAL_S)
        self.last_5_s = sum(wanted) / CORES
        (load,) = (
            lasting_demand.LastingDemand(
                self._histories,
                self._sample,
                _HOST,
                _GUESTS,
                _PROMISES,
                _PLACEMENT_OPTIONS,
                _NOW_NS,
            )
            .node_loads()
            .values()
        )
        self.longer = load.demand_cores / CORES

    def _measure(self, seconds):
        """Let an interval pass and add it; return the cores that each guest wanted."""
        wanted = [guest.run(seconds) for guest in self.guests]
        self._sample = Sample(
            0.0,
            seconds,
            '',
            (NodeSample(0, demand_cores=sum(wanted)),),
            tuple(
                GuestSample(name, name, '', '', cores, 0.0, ((0, cores),) if cores else ())
                for name, cores in zip(_NAMES, wanted)
            ),
        )
        self._histories.add_sample(self._sample, _GUESTS, _PROMISES)
        return wanted


def differing_fraction(ratios: list[float], step: float) -> float:
    """Return the fraction of neighbouring pairs that differ by a step or more."""
    pairs = list(zip(ratios[::2], ratios[1::2]))
    return sum(abs(a - b) >= step for a, b in pairs) / len(pairs)
