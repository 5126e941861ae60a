# SPDX-License-Identifier: Apache-2.0
"""From what was measured, promised and read of guests to what the rebalancer is told of each."""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import agreeing, moves

TYPE_CHECKING = False  # not typing's, which is dear to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nova_numa_pmc.sample import GuestSample, NodeSample

LINE_BYTES = 64


def guest_loads(
    samples: Iterable[GuestSample],
    guests: Mapping[str, model.Guest],
    promises: Mapping[str, model.Promise],
    view: model.HostView,
    held: Mapping[str, Iterable[int]] | None = None,
    busy: Mapping[str, str] | None = None,
    now_ns: int | None = None,
) -> tuple[moves.GuestLoad, ...]:
    """Join what is known of each guest.

    :param guests, promises: by uuid
    :param view: its nodes' ``cpus`` tell where a guest may run
    :param held: {uuid: node ids that its CPUs are held to now}; absent: those promised
    :param busy: {uuid: code} of guests that must not be touched now: 'active_job' (migration,
        save, snapshot), 'paused'; 'kept' and 'ignored' by the operator …
    :param now_ns: CLOCK_BOOTTIME, None: no guest counts as just placed
    :returns: in the order of their uuids
    """
    samples = sorted(samples, key=lambda each: each.uuid)
    bytes_per_line = _bytes_per_line(samples, view.nodes)
    return tuple(
        _guest_load(
            each,
            guests.get(each.uuid),
            promises.get(each.uuid),
            view,
            bytes_per_line,
            (held or {}).get(each.uuid),
            (busy or {}).get(each.uuid, ''),
            now_ns,
        )
        for each in samples
    )


def waiting_cores(samples: Iterable[GuestSample]) -> tuple[tuple[int, float], ...]:
    """Sum by node what guests waited there, for :class:`moves.Situation`.

    A guest's waiting is divided as it ran. A node where somebody's is unknown is left out.

    :returns: (node id, cores), ascending ids
    """
    waited: dict[int, float] = {}
    unknown = set()
    for sample in samples:
        ran = sum(cores for _, cores in sample.cores_by_node)
        for node, cores in sample.cores_by_node:
            if sample.waiting_cores is None:
                unknown.add(node)
            elif ran > 0:
                waited[node] = waited.get(node, 0.0) + sample.waiting_cores * cores / ran
    return tuple((node, waited[node]) for node in sorted(waited) if node not in unknown)


def why_fixed(guest: model.Guest | None, promise: model.Promise | None, busy: str = '') -> str:
    """Say why a guest must not be touched.

    :param guest: None: its XML is not known
    :param promise: None: there is none
    :param busy: code of what it is doing, '' nothing
    :returns: a code; '' it may be moved. 'unknown' neither of us nor of libvirt; 'starting';
        'pinned' placed by others; 'opted_out', 'spread' by its policy; 'locked' memory that
        can't move (VFIO, SEV, mlock); 'huge_pages'; 'bound' to its nodes by choice
    """
    if busy:
        return busy
    if guest is None or promise is None:
        return 'unknown'
    policy = dict(guest.hints).get('numa_pmc:policy')
    for code, holds in (
        ('starting', not promise.started),
        ('pinned', guest.placed_by or promise.origin == model.PINNED),
        ('opted_out', policy == model.NONE),
        ('spread', policy == model.SPREAD),
        ('locked', guest.locked or guest.devices),
        ('huge_pages', guest.page_bytes or promise.page_bytes),
        ('bound', promise.bound),
    ):
        if holds:
            return code
    return ''


def _guest_load(
    sample: GuestSample,
    guest: model.Guest | None,
    promise: model.Promise | None,
    view: model.HostView,
    bytes_per_line: float | None,
    held: Iterable[int] | None,
    busy: str,
    now_ns: int | None,
) -> moves.GuestLoad:
    known = promise or model.Promise(sample.uuid, sample.name, (), (), 1, 0)
    return moves.GuestLoad(
        sample.uuid,
        sample.name,
        known.vcpus if guest is None else max(guest.vcpus, guest.vcpus_max or 0),
        known.memory_bytes,
        known.cpu_nodes if held is None else tuple(held),
        known.cpu_nodes,
        known.mem_nodes,
        known.mem_bytes,
        sample.bytes_by_node,
        sample.cores_by_node,
        None if sample.cores is None else sample.cores + (sample.waiting_cores or 0.0),
        sample.cores,
        _lines(sample),
        sample.remote_ratio,
        _traffic(sample, bytes_per_line),
        None if guest is None else _allowed_nodes(guest, view),
        why_fixed(guest, promise, busy),
        _young(promise, now_ns),
    )


def _young(promise: model.Promise | None, now_ns: int | None) -> bool:
    return (
        promise is not None
        and now_ns is not None
        and promise.origin == model.PLACED
        and promise.since_ns > now_ns - agreeing.YOUNG_NS
    )


def _lines(sample: GuestSample) -> float | None:
    """Return DRAM accesses per second; a source that counts bytes only tells them too."""
    if sample.local_per_sec is not None and sample.remote_per_sec is not None:
        return sample.local_per_sec + sample.remote_per_sec
    if sample.bandwidth_bytes_per_sec is not None:
        return sample.bandwidth_bytes_per_sec / LINE_BYTES
    return None


def _bytes_per_line(
    samples: Sequence[GuestSample], nodes: Sequence[model.NodeView | NodeSample]
) -> float | None:
    """Return the host's DRAM traffic per access that its guests' counters saw; None: unknown.

    Events of retired loads see neither prefetches nor stores, so that an access stands for
    more than its 64 bytes; what the memory controllers served is shared out by accesses.
    """
    lines = sum(_lines(each) or 0.0 for each in samples)
    served = [
        node.bandwidth_bytes_per_sec for node in nodes if node.bandwidth_bytes_per_sec is not None
    ]
    return sum(served) / lines if lines and len(served) == len(nodes) else None


def _allowed_nodes(guest: model.Guest, view: model.HostView) -> tuple[int, ...] | None:
    """List the nodes on which a guest may run; None: on any."""
    if guest.allowed_cpus is None:
        return None
    return tuple(
        node.id for node in view.nodes if node.cpus is not None and guest.allowed_cpus & node.cpus
    )


def traffic_of(samples: Sequence[GuestSample], nodes: Sequence[NodeSample]) -> dict[str, float]:
    """Return {uuid: DRAM traffic in bytes/s}; a guest whose traffic is unknown is left out."""
    bytes_per_line = _bytes_per_line(samples, nodes)
    found = {each.uuid: _traffic(each, bytes_per_line) for each in samples}
    return {uuid: traffic for uuid, traffic in found.items() if traffic is not None}


def _traffic(sample: GuestSample, bytes_per_line: float | None) -> float | None:
    """Return a guest's DRAM traffic: as counted, else by its accesses; None: unknown [bytes/s]."""
    lines = _lines(sample)
    if sample.bandwidth_bytes_per_sec is not None or lines is None or bytes_per_line is None:
        return sample.bandwidth_bytes_per_sec
    return lines * bytes_per_line
