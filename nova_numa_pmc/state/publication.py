# SPDX-License-Identifier: Apache-2.0
"""Publication of a host by its agent, in the file ``host`` in the state directory.

nova-compute and the libvirt hook read it. It is a JSON object with the members of
:class:`Publication`. A reader accepts any minor version of its own major version, so that the
agent and its readers can be upgraded one after the other. The file is replaced by rename(2),
without a lock, and any user may read it.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.model import DemandHistory, HostView, PoolLoad
from nova_numa_pmc.record import TYPE_CHECKING, Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from nova_numa_pmc.core.measurements import Sample

FILE = 'host'
FRESH, STALE, FUTURE = 'fresh', 'stale', 'future'
#: A publication is stale after this many intervals, each of which counts as at most
#: :data:`_INTERVAL_MAX_S`, but not before :data:`STALE_MIN_S`.
_STALE_INTERVALS = 3
STALE_MIN_S = 30.0
_INTERVAL_MAX_S = 600.0
_MAJOR = 2
#: Enough for a host with the most nodes and their distances.
_SIZE_MAX_BYTES = 8 << 20


class Publication(Record):
    """A host as it was published.

    :param taken_s: CLOCK_REALTIME of the measurement [s since the epoch]
    :param interval_s: length of the measurement, which is also the period of publication
    :param view: the host, without the CPUs and huge pages of its nodes. The demand is over the
        longer horizon (:mod:`core.demand`)
    :param source: the best source of evidence in use, or '' if there is none
    :param pool_source: where the CPUs of the floating pool were taken from: 'nova.conf', 'guests'
        (their XML) or 'kernel' (all usable CPUs); '' if not reported
    :param history: demand of the host's guests, from which that of new guests is estimated
    :param uuids: uuids, ascending, of the guests whose promised memory and demand the view
        includes: those with a promise, from the start of their domain on; None: not reported
    :param boot_id: boot id of the kernel at the time of the measurement
    :param taken_ns: CLOCK_BOOTTIME of the measurement
    :param pools: measured load of each pool, beginning with the floating pool, for the hook
    """

    taken_s: float
    interval_s: float
    view: HostView
    source: str = ''
    pool_source: str = ''
    history: DemandHistory = DemandHistory()
    uuids: tuple[str, ...] | None = None
    boot_id: str = ''
    taken_ns: int = 0
    pools: tuple[PoolLoad, ...] = ()


def stale_after_s(interval_s: float) -> float:
    """Return the age [s] above which a publication is stale, given how often it is replaced."""
    return max(STALE_MIN_S, _STALE_INTERVALS * min(interval_s, _INTERVAL_MAX_S))


def freshness(publication: Publication, realtime_s: float) -> str:
    """Classify the age of a publication.

    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    :returns: :data:`FRESH`, :data:`STALE`, or :data:`FUTURE` if the clock has been set back since
    """
    age_s = realtime_s - publication.taken_s
    if age_s < -STALE_MIN_S:
        return FUTURE
    return FRESH if age_s <= stale_after_s(publication.interval_s) else STALE


def from_sample(view: HostView, sample: Sample) -> Publication:
    """Return the publication of a host, from its view and a sample.

    :param view: the view of the host at the time of the sample
    """
    measured = {node.id: node for node in sample.nodes}
    nodes = [node._replace(cpus=None, huge_free_bytes=()) for node in view.nodes]
    return Publication(
        sample.taken_s,
        sample.elapsed_s,
        view._replace(
            nodes=tuple(
                node._replace(
                    remote_ratio=measured[node.id].remote_ratio,
                    demand_now_cores=measured[node.id].demand_cores,
                )
                if node.id in measured
                else node
                for node in nodes
            )
        ),
        sample.source,
        sample.pool_source,
        pools=_pool_loads(view, sample),
    )


def _pool_loads(view: HostView, sample: Sample) -> tuple[PoolLoad, ...]:
    """Return the loads of the view's pool, first, and of all other pools.

    Their vCPUs are the promised ones, because guests that start later are charged by their
    promises. A pool without any of the view's CPUs has none.
    """
    stolen = {node.id: node.stolen_cores for node in sample.nodes}
    loads = {
        node.id: model.NodeLoad(
            node.demand_cores,
            node.bandwidth_bytes_per_sec,
            node.bandwidth_max_bytes_per_sec,
            node.link_ratio,
            stolen.get(node.id),
        )
        for node in view.nodes
    }
    cpus = frozenset[int]().union(*(node.cpus or () for node in view.nodes))
    vcpus = tuple((node.id, node.vcpus) for node in view.nodes)
    pools = [PoolLoad(cpus, tuple(loads.items()), vcpus)]
    for pool in sample.pools:
        stolen = dict(pool.stolen_by_node)
        pools.append(
            PoolLoad(
                frozenset(pool.cpus),
                tuple(
                    (node, loads[node]._replace(demand_cores=cores, stolen_cores=stolen.get(node)))
                    for node, cores in pool.demand_by_node
                    if node in loads
                ),
                vcpus if cpus.intersection(pool.cpus) else tuple((node, 0) for node in loads),
            )
        )
    return tuple(pools)


class PlacementEvidence(Record):
    """The measurements that a decision on this host is based on.

    :param summary: text such as 'the pressure measured 3 s ago' or 'promises alone: the agent has
        published nothing'
    :param loads: (node id, load); empty if there are no measurements that can be used
    :param vcpus: (node id, vCPUs of the guests that are included in its load)
    :param problems: problems to be logged
    :param history: as in :class:`Publication`
    """

    summary: str
    loads: tuple[tuple[int, model.NodeLoad], ...] = ()
    vcpus: tuple[tuple[int, float], ...] = ()
    problems: tuple[str, ...] = ()
    history: model.DemandHistory = model.DemandHistory()


def read_evidence(
    directory: str,
    boot_id: str,
    boottime_ns: int,
    own_cpus: frozenset[int],
    avoids_floating_pool: bool,
) -> PlacementEvidence:
    """Return the evidence for the start of a guest, without loads if the file cannot be used.

    :param directory: path of the state directory
    :param boottime_ns: CLOCK_BOOTTIME
    :param own_cpus: CPUs of the guest's own pool; if that pool is not published, the floating
        pool is used
    :param avoids_floating_pool: whether ``own_cpus`` has none of the floating pool's CPUs, so that
        its load does not apply
    """
    try:
        loads = read_optional(directory)
    except StateError as error:
        return PlacementEvidence(
            'promises alone: the publication cannot be read', problems=(str(error),)
        )
    if loads is None or not loads.pools:
        return PlacementEvidence('promises alone: the agent has published nothing')
    age_s = (boottime_ns - loads.taken_ns) / 1e9
    if loads.boot_id != boot_id or age_s < -STALE_MIN_S:
        return PlacementEvidence('promises alone: the publication is from another boot')
    if age_s > stale_after_s(loads.interval_s):
        return PlacementEvidence('promises alone: the publication is %.0f s old' % age_s)
    pool = None if avoids_floating_pool else loads.pools[0]
    for own_pool in loads.pools[1:]:
        if own_pool.cpus == own_cpus:
            pool = own_pool
    if pool is None:
        return PlacementEvidence("promises alone: the guest's CPUs were not measured")
    return PlacementEvidence(
        'the pressure measured %.0f s ago' % max(0, age_s),
        pool.loads,
        pool.vcpus,
        history=loads.history,
    )


def encode(publication: Publication) -> bytes:
    """Return a publication as the file's bytes."""
    return json_values.encode(publication, _MAJOR)


def decode(data: bytes) -> Publication:
    """Parse the file's bytes.

    :raises StateError: this is not such a file, is truncated, or is of another major version
    """
    try:
        publication = json_values.decode(Publication, data, _MAJOR)
        return publication._replace(view=checked_view(publication.view))
    except ValueError as error:
        raise StateError(str(error)[:200]) from None


def checked_view(view: HostView) -> HostView:
    """Return a view that was read, if its nodes, distances and domains fit together.

    :raises ValueError: they do not
    """
    ids, count = [node.id for node in view.nodes], len(view.nodes)
    if not ids or ids != sorted(set(ids)):
        raise ValueError('node ids are missing, repeated or out of order')
    if view.distances and [len(row) for row in view.distances] != [count] * count:
        raise ValueError('distances: expected a %d by %d matrix' % (count, count))
    if view.domains and len(view.domains) != count:
        raise ValueError('domains: expected %d, one for each node' % count)
    return view._replace(domains=memory_domains.domains_from_labels(view.domains))


def write(directory: str, publication: Publication) -> None:
    """Replace the file in the state directory.

    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    state_files.write(directory, FILE, encode(publication))


def read_optional(directory: str) -> Publication | None:
    """Read the file in the state directory; return None if there is none.

    :raises StateError: it cannot be used; the message has the remedy
    """
    data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    if data is None:
        return None
    try:
        return decode(data)
    except StateError as error:
        raise StateError(
            '%s: %s: nova-numa-agent replaces the file; run the same release of the agent and of '
            'its readers' % (os.path.join(directory, FILE), error)
        ) from None


def read(directory: str) -> Publication:
    """Read the file in the state directory.

    :raises StateError: there is no such file, or it cannot be used; the message has the remedy
    """
    publication = read_optional(directory)
    if publication is None:
        raise StateError('%s: no such file: start nova-numa-agent' % os.path.join(directory, FILE))
    return publication
