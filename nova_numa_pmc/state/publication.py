# SPDX-License-Identifier: Apache-2.0
"""Publication of a host by its agent, in the file ``host`` in the state directory.

The file is a JSON object with a schema version ``major.minor``. A reader accepts any minor version
of its own major version and ignores members that it does not know, so that the agent and
nova-compute can be upgraded one after the other. The file is replaced by rename(2), without a
lock, and any user may read it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values, model
from nova_numa_pmc.core import memory_domains
from nova_numa_pmc.cpulist import NODES_MAX
from nova_numa_pmc.exceptions import StateError, require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import pool_loads, state_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, NoReturn

    from nova_numa_pmc.sample_records import Sample

FILE = 'host'
FRESH, STALE, FUTURE = 'fresh', 'stale', 'future'
_MAJOR, _MINOR = 1, 5
#: Enough for a host with that many nodes and their distances.
_SIZE_MAX_BYTES = 8 << 20
_NAME_MAX = 64
_REASON_MAX = 256
_GUESTS_MAX = 1023
#: More guests than a host can have, and the length of a uuid with hyphens.
_UUIDS_MAX, _UUID_LENGTH = 1 << 16, 36

_PUBLISHED_OPTIONS = ('pressure_floor', 'pressure_step')
#: Member of ``limits``: before 1.3, nodes nearer than this were one domain.
_DOMAIN_DISTANCE = 'domain_distance'
#: Members of a node that are numbers. The optional ones may be null, which is unknown.
_KNOWN = ('cores', 'capacity_bytes', 'promised_bytes', 'guests', 'vcpus')
_OPTIONAL = (
    'demand_cores',
    'bandwidth_bytes_per_sec',
    'bandwidth_max_bytes_per_sec',
    'link_ratio',
)
#: Member with the number of CPUs.
_CPU_COUNT = 'threads'
_HISTORY = 'guests', 'cores_per_vcpu_sum'
_INTEGERS = ('id', 'capacity_bytes', 'promised_bytes')


class Publication(Record):
    """A host as it was published.

    :param taken_s: CLOCK_REALTIME of the measurement [s since the epoch]
    :param interval_s: length of the measurement, which is also the period of publication
    :param view: the host, without the CPUs and huge pages of its nodes. The demand is over the
        longer horizon (:mod:`core.demand.lasting_demand`)
    :param remote_ratios: by position, remote ÷ all DRAM accesses of the node's CPUs; None if
        unknown
    :param source: the best source of evidence in use, or '' if there is none
    :param placement_options: the file has those that :func:`placement.place` reads from it, floor
        and step, as ``limits``
    :param demand_now_cores: by position, demand in the interval, with None where unknown; empty if
        not reported
    :param pool_source: where the CPUs of the floating pool were taken from: 'nova.conf', 'guests'
        (their XML) or 'kernel' (all usable CPUs); '' if not reported
    :param events_source: how the agent learns of its guests: 'libvirt', or 'status files' with the
        reason; '' if not reported
    :param history: demand of the host's guests, from which that of new guests is estimated
    :param uuids: uuids, ascending, of the guests whose promised memory and demand the view
        includes: those with a promise, from the start of their domain on; None: not reported
    """

    taken_s: float
    interval_s: float
    view: model.HostView
    remote_ratios: tuple[float | None, ...]
    source: str = ''
    placement_options: model.PlacementOptions = model.PlacementOptions()
    demand_now_cores: tuple[float | None, ...] = ()
    pool_source: str = ''
    events_source: str = ''
    history: model.DemandHistory = model.DemandHistory()
    uuids: tuple[str, ...] | None = None

    def by_node(self) -> Iterator[tuple[model.NodeView, float | None, float | None]]:
        """Yield (node, its remote ratio, its demand in the interval), with None where unknown."""
        now_cores = self.demand_now_cores or (None,) * len(self.view.nodes)
        yield from zip(self.view.nodes, self.remote_ratios, now_cores)


def freshness(publication: Publication, realtime_s: float) -> str:
    """Classify the age of a publication.

    :param realtime_s: CLOCK_REALTIME [s since the epoch]
    :returns: :data:`FRESH`, :data:`STALE`, or :data:`FUTURE` if the clock has been set back since
    """
    age_s = realtime_s - publication.taken_s
    if age_s < -pool_loads.STALE_MIN_S:
        return FUTURE
    return FRESH if age_s <= pool_loads.stale_after_s(publication.interval_s) else STALE


def from_sample(
    view: model.HostView, sample: Sample, placement_options: model.PlacementOptions
) -> Publication:
    """Return the publication of a host, from its view and a sample.

    :param view: the view of the host at the time of the sample
    :param placement_options: the placement options of the host
    """
    remote_ratios = {node.id: node.remote_ratio for node in sample.nodes}
    demand_now_cores = {node.id: node.demand_cores for node in sample.nodes}
    return Publication(
        sample.taken_s,
        sample.elapsed_s,
        view._replace(
            nodes=tuple(node._replace(cpus=None, huge_free_bytes=()) for node in view.nodes)
        ),
        tuple(remote_ratios.get(node.id) for node in view.nodes),
        sample.source,
        placement_options,
        tuple(demand_now_cores.get(node.id) for node in view.nodes),
        sample.pool_source,
    )


def _floating_pool_load(
    view: model.HostView, stolen: Mapping[int, float | None]
) -> model.PoolLoad:
    """Return the load of the pool that a view describes.

    :param stolen: {node id: cores that the host's own hypervisor gave to other machines}
    """
    return model.PoolLoad(
        frozenset().union(*(node.cpus or () for node in view.nodes)),
        tuple(
            (
                node.id,
                model.NodeLoad(
                    stolen_cores=stolen.get(node.id),
                    **{name: getattr(node, name) for name in _OPTIONAL},
                ),
            )
            for node in view.nodes
        ),
        tuple((node.id, node.vcpus) for node in view.nodes),
    )


def pool_loads_of(view: model.HostView, sample: Sample) -> tuple[model.PoolLoad, ...]:
    """Return the loads of the view's pool, first, and of all other pools, for the hook.

    Their vCPUs are the promised ones, because guests that start later are charged by their
    promises. A pool without any of the view's CPUs has none.
    """
    floating = _floating_pool_load(view, {node.id: node.stolen_cores for node in sample.nodes})
    loads, pools = dict(floating.loads), [floating]
    for pool in sample.pools:
        stolen = dict(pool.stolen_by_node)
        pools.append(
            model.PoolLoad(
                frozenset(pool.cpus),
                tuple(
                    (node, loads[node]._replace(demand_cores=cores, stolen_cores=stolen.get(node)))
                    for node, cores in pool.demand_by_node
                    if node in loads
                ),
                floating.vcpus
                if floating.cpus.intersection(pool.cpus)
                else tuple((node, 0) for node in loads),
            )
        )
    return tuple(pools)


def encode(publication: Publication) -> bytes:
    """Return a publication as the file's bytes."""
    nodes = []
    for node, remote_ratio, now_cores in publication.by_node():
        members = node._asdict()
        members[_CPU_COUNT] = members.pop('cpu_count')
        del members['cpus'], members['huge_free_bytes']
        nodes.append(dict(members, remote_ratio=remote_ratio, demand_now_cores=now_cores))
    return (
        json.dumps(
            {
                'schema': '%d.%d' % (_MAJOR, _MINOR),
                'taken_s': publication.taken_s,
                'interval_s': publication.interval_s,
                'source': publication.source,
                'guests_by': publication.events_source[:_REASON_MAX],
                'limits': {
                    _DOMAIN_DISTANCE: memory_domains.threshold(publication.view)[0],
                    **{
                        name: getattr(publication.placement_options, name)
                        for name in _PUBLISHED_OPTIONS
                    },
                },
                'rotation': publication.view.rotation,
                'distances': publication.view.distances,
                'domains': publication.view.domains,
                'nodes': nodes,
                'pool_source': publication.pool_source,
                'history': {name: getattr(publication.history, name) for name in _HISTORY},
                'uuids': publication.uuids,
            },
            allow_nan=False,
        ).encode()
        + b'\n'
    )


def decode(data: bytes) -> Publication:
    """Parse the file's bytes.

    :raises StateError: this is not a publication, is damaged, or is of another major version
    """
    try:
        members = json_values.Members(json.loads(data, parse_constant=_refuse))
        require_major(members.text('schema', _NAME_MAX), _MAJOR)
        nodes = [json_values.Members(node) for node in members.sequence('nodes', NODES_MAX)]
        views = tuple(map(_node, nodes))
        ids = [view.id for view in views]
        if not ids or ids != sorted(set(ids)):
            raise ValueError('node ids are missing, repeated or out of order')
        limits = json_values.Members(members.get('limits', {}))
        now_cores = tuple(node.number('demand_now_cores', None) for node in nodes)
        return Publication(
            taken_s=members.number('taken_s'),
            interval_s=members.number('interval_s'),
            view=_view(members, views, limits),
            remote_ratios=tuple(node.number('remote_ratio', None, maximum=1.0) for node in nodes),
            source=members.text('source', _NAME_MAX, ''),
            placement_options=_placement_options(limits),
            demand_now_cores=() if now_cores.count(None) == len(now_cores) else now_cores,
            pool_source=members.text('pool_source', _NAME_MAX, ''),
            events_source=members.text('guests_by', _REASON_MAX, ''),
            history=_history(json_values.Members(members.get('history', {}))),
            uuids=_uuids(members),
        )
    except (ValueError, RecursionError) as error:  # JSON's and Unicode's errors are ValueErrors
        raise StateError(str(error)[:200]) from None


def write(directory: str, publication: Publication) -> None:
    """Replace the file in the state directory.

    :raises StateError: the directory cannot be trusted, or the file cannot be written
    """
    state_files.write(directory, FILE, encode(publication))


def read(directory: str) -> Publication:
    """Read the file in the state directory.

    :raises StateError: there is no such file, or it cannot be used; the message has the remedy
    """
    path = os.path.join(directory, FILE)
    data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    if data is None:
        raise StateError('%s: no such file: start nova-numa-agent' % path)
    try:
        return decode(data)
    except StateError as error:
        raise StateError(
            '%s: %s: nova-numa-agent replaces the file; run the same release of the agent and of '
            'its readers' % (path, error)
        ) from None


def _node(members: json_values.Members) -> model.NodeView:
    values: dict[str, Any] = {name: members.number(name) for name in _KNOWN}
    values.update((name, members.number(name, None)) for name in _OPTIONAL)
    values.update((name, members.integer(name)) for name in _INTEGERS)
    return model.NodeView(cpu_count=members.integer(_CPU_COUNT), **values)


def _view(
    members: json_values.Members, views: tuple[model.NodeView, ...], limits: json_values.Members
) -> model.HostView:
    """Return the view of the nodes, whose domains are implied by their distances before 1.3."""
    distances = _distances(members, len(views))
    if members.get('domains', None) is None:
        domains = memory_domains.domains_from_distances(
            distances, limits.number(_DOMAIN_DISTANCE, memory_domains.NEAR_DEFAULT)
        )
    else:
        labels = members.sequence('domains', len(views))
        if labels and len(labels) != len(views):
            raise ValueError('domains: expected %d, one for each node' % len(views))
        domains = memory_domains.domains_from_labels(_integers('domains', labels, len(labels)))
    return model.HostView(views, distances, members.integer('rotation', 0), domains)


def _placement_options(members: json_values.Members) -> model.PlacementOptions:
    values: dict[str, Any] = {
        name: members.number(name, model.PlacementOptions._field_defaults[name])
        for name in _PUBLISHED_OPTIONS
    }
    return model.PlacementOptions(**values)


def _distances(members: json_values.Members, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the matrix of distances, which is empty if the firmware reports none."""
    rows = members.sequence('distances', count, ())
    if rows and len(rows) != count:
        raise ValueError('distances: expected a %d by %d matrix' % (count, count))
    return tuple(_integers('distances', row, count, memory_domains.DISTANCE_MAX) for row in rows)


def _history(members: json_values.Members) -> model.DemandHistory:
    guests, total = (
        members.number(name, 0, maximum)
        for name, maximum in zip(_HISTORY, (_GUESTS_MAX, json_values.MEMBER_MAX))
    )
    return model.DemandHistory(json_values.integer(guests), total)


def _uuids(members: json_values.Members) -> tuple[str, ...] | None:
    """Return the uuids of the guests that are included; None before 1.5."""
    if members.get('uuids', None) is None:
        return None
    uuids = tuple(
        json_values.member('uuids', json_values.text, uuid, _UUID_LENGTH)
        for uuid in members.sequence('uuids', _UUIDS_MAX)
    )
    if any(len(uuid) != _UUID_LENGTH for uuid in uuids):
        raise ValueError('uuids: expected %d characters each' % _UUID_LENGTH)
    return uuids


def _integers(
    name: str, values: object, count: int, maximum: int = json_values.MEMBER_MAX
) -> tuple[int, ...]:
    """Check that a value is a list of ``count`` integers, and return them.

    :param name: name of the member, for messages
    """
    try:
        return tuple(
            json_values.integer(value, maximum)
            for value in json_values.sequence(values, count, count)
        )
    except ValueError as error:
        raise ValueError('its %s: %s' % (name, error)) from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError('%s is not a number' % constant)
