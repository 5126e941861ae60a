# SPDX-License-Identifier: Apache-2.0
"""Make the rebalancer's input of a host: from a tick of the agent, or for a command."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nova_numa_pmc.core import host_view, pools
from nova_numa_pmc.core.rebalance import eligibility, guest_load, plan_records
from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host.paging import node_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.sample_records import GuestSample, Sample
    from nova_numa_pmc.sampling import Sampler
    from nova_numa_pmc.state.promises_format import HostPromises


def situation(
    sample: Sample,
    host: model.Topology,
    host_promises: HostPromises,
    guests: Iterable[model.Guest],
    sampler: Sampler,
    limits: model.PlacementOptions,
    root: str,
    places: Mapping[str, tuple[int, ...]] | None = None,
    measured_since_ns: int | None = None,
    now_ns: int | None = None,
) -> plan_records.Situation:
    """Return the rebalancer's input from what was measured and observed.

    It includes the free memory of the nodes, which moves need.

    :param sampler: took the sample
    :param places: {uuid: node ids} of guests that are held to more nodes than were promised
    :param measured_since_ns: CLOCK_BOOTTIME at the beginning of the interval; a guest placed since
        then is left where it is. None: all guests are considered
    :param now_ns: CLOCK_BOOTTIME now; None: no guest counts as just placed
    """
    promised = host_promises.promises
    running = {guest.uuid: guest for guest in guests}
    sample, inside = _in_pool(sample, running, host)
    view = host_view.view(
        host,
        promised.values(),
        limits,
        {node.id: node for node in sample.nodes},
        host_promises.rotation,
    )
    loads = guest_load.guest_loads(
        sample.guests, running, promised, view, places, now_ns, host, measured_since_ns
    )
    free = []
    for node in host.nodes:
        with contextlib.suppress(PageMoveError):
            free.append((node.id, node_room.available_bytes(node.id, root)))
    return plan_records.Situation(
        view,
        loads,
        sampler.latencies_ns(host),
        guest_load.waiting_cores(inside),
        tuple(free),
        sampler.mlp,
        limits,
    )


def _in_pool(
    sample: Sample, running: Mapping[str, model.Guest], host: model.Topology
) -> tuple[Sample, list[GuestSample]]:
    """Return (sample, samples of the guests in the floating pool).

    The CPU time of all other guests is made unknown in the sample, as the nodes' CPU demand is
    that of the floating pool; their memory still counts.
    """
    guest_samples, inside = [], []
    for guest_sample in sample.guests:
        guest = running.get(guest_sample.uuid)
        if guest and (not eligibility.is_in_pool(guest, host) or pools.is_apart(guest, host)):
            guest_samples.append(guest_sample._replace(cores=None, waiting_cores=None))
        else:
            guest_samples.append(guest_sample)
            inside.append(guest_sample)
    return sample._replace(guests=tuple(guest_samples)), inside
