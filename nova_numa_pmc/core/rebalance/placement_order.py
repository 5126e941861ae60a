# SPDX-License-Identifier: Apache-2.0
"""Check whether a move agrees with the order by which guests are placed.

Moves are decided on the host's loss, placements on pressure. The two can disagree on the same
figures if bandwidth is decisive on one node and CPU on another, or if nodes differ in size. A
guest that has just been placed therefore stays where it is until a placement, too, would prefer
another node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import node_traffic_per_core
from nova_numa_pmc.core.placement import ranking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.core.rebalance.layout import GuestModel

#: A guest counts as just placed for this time, after which its demand over minutes is known [ns].
JUST_PLACED_NS = 900 * 10**9
#: Rounding error of sums of floats.
_NOISE = 1e-6


class NodeOrder:
    """Order of a host's nodes for a guest, as the measurements would determine it in a placement.

    :param nodes: views of the host's memory domains
    :param memory_at: by position, the position of the memory of guests that run there
    :param latencies_ns: latencies by position, with a row for each node's CPUs
    :param placement_options: only the floor and step of pressure are used
    """

    def __init__(
        self,
        nodes: tuple[model.NodeView, ...],
        memory_at: Sequence[int],
        latencies_ns: Sequence[Sequence[float]],
        placement_options: model.PlacementOptions,
    ) -> None:
        self._nodes, _ = missing.fill_in(nodes)
        self._memory_at, self._latencies_ns = memory_at, latencies_ns
        self._placement_options = placement_options
        self._bytes_per_core_sec = node_traffic_per_core(nodes)

    def prefers(self, guest: GuestModel, n: int) -> bool:
        """Return whether a placement would prefer position ``n`` to the guest's present place."""
        bandwidth = guest.load.bandwidth_bytes_per_sec
        if bandwidth is None:
            bandwidth = guest.demand_cores * (self._bytes_per_core_sec or 0.0)
        if (self._nodes[n].bandwidth_max_bytes_per_sec or bandwidth) < bandwidth:
            return False
        if len(guest.cpu_positions) > 1:
            return True  # what it loses on several nodes and on one is in the move's gain
        new_key = self._key(guest, n, bandwidth, _NOISE)
        return new_key < self._key(guest, guest.cpu_positions[0], bandwidth, -_NOISE)

    def _key(
        self, guest: GuestModel, n: int, bandwidth: float, noise: float
    ) -> tuple[float, float, float]:
        """Return those of :data:`ranking.KEY_FIELDS` that are measured, with the guest on ``n``.

        :param noise: added to the pressure, so that rounding errors decide for the present place
        """
        memory = self._memory_at[n]
        pressure = max(
            self._pressure(guest, n, bandwidth if memory == n else 0.0),
            0.0 if memory == n else self._pressure(guest, memory, bandwidth, False),
        )
        pressure = max(0.0, pressure + noise)
        row, placement_options = self._latencies_ns[n], self._placement_options
        return (
            ranking.in_steps(max(pressure, placement_options.pressure_floor), placement_options),
            row[memory] - row[n],
            ranking.in_steps(pressure, placement_options),
        )

    def _pressure(
        self, guest: GuestModel, n: int, bandwidth: float, uses_cpus: bool = True
    ) -> float:
        """Return a node's pressure with the guest on it.

        What the guest already uses there is part of the measured load, and is not added again.
        """
        cpu_share = dict(guest.cpu_shares).get(n, 0.0)
        mem_share = dict(guest.mem_shares).get(n, 0.0)
        return max(
            ranking.utilisations(
                self._nodes[n],
                guest.demand_cores * (1 - cpu_share) if uses_cpus else None,
                max(0.0, bandwidth * (1 - mem_share)),
            )
        )
