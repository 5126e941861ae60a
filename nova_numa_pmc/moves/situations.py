# SPDX-License-Identifier: Apache-2.0
"""Build the rebalancer's input for a host, in a tick of the agent or for a command."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nova_numa_pmc.core import eligibility, host_view, pools
from nova_numa_pmc.core.rebalance import guest_load, plan_records
from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.page_moves import node_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.agent.sampling import Sampler
    from nova_numa_pmc.core.demand.histories import UsageHistory
    from nova_numa_pmc.core.sample_records import GuestSample, Sample
    from nova_numa_pmc.state.promises_file import HostPromises


def situation(
    sample: Sample,
    host: model.Topology,
    host_promises: HostPromises,
    guests: Iterable[model.Guest],
    sampler: Sampler,
    placement_options: model.PlacementOptions,
    root: str,
    measured_since_ns: int | None = None,
    histories: Mapping[str, UsageHistory] | None = None,
) -> plan_records.Situation:
    """Return the rebalancer's input, from a sample and the observed guests.

    It includes the room on the nodes, as a move of pages reads it.

    :param sampler: the sampler that took the sample
    :param measured_since_ns: CLOCK_BOOTTIME at the beginning of the interval; a guest placed since
        then is left where it is. None to consider all guests
    :param histories: {uuid: history of its demand}; None: unknown
    """
    promised = host_promises.promises
    running = {guest.uuid: guest for guest in guests}
    sample, pool_samples = _in_pool(sample, running, host)
    view = host_view.view(
        host,
        promised.values(),
        placement_options,
        {node.id: node for node in sample.nodes},
        host_promises.rotation,
    )
    loads = guest_load.guest_loads(
        sample, running, promised, view, host, measured_since_ns, histories
    )
    room_bytes: tuple[tuple[int, int], ...] = ()
    with contextlib.suppress(PageMoveError):
        room_bytes = tuple(
            (node, memory.room_bytes) for node, memory in node_room.read(root).items()
        )
    return plan_records.Situation(
        view,
        loads,
        sampler.latencies_ns(host),
        guest_load.waiting_cores(pool_samples),
        room_bytes,
        sampler.mlp,
    )


def _in_pool(
    sample: Sample, running: Mapping[str, model.Guest], host: model.Topology
) -> tuple[Sample, list[GuestSample]]:
    """Return (sample, samples of the guests in the floating pool).

    In the sample, the CPU time of all other guests is None, because the CPU demand of the nodes is
    that of the floating pool. The memory of these guests still counts.
    """
    guest_samples, pool_samples = [], []
    for guest_sample in sample.guests:
        guest = running.get(guest_sample.uuid)
        if guest and (
            not eligibility.is_in_pool(guest, host) or pools.avoids_floating_pool(guest, host)
        ):
            guest_samples.append(guest_sample._replace(cores=None, waiting_cores=None))
        else:
            guest_samples.append(guest_sample)
            pool_samples.append(guest_sample)
    return sample._replace(guests=tuple(guest_samples)), pool_samples
