# SPDX-License-Identifier: Apache-2.0
"""A publication as two of Nova's compute metrics: their keys, how they are filled, and when again.

The metrics ``numa.membw.current`` and ``numa.membw.max`` have a field ``numa_membw_values``, a
dict of str to int, which Nova carries from a compute monitor to the scheduler as JSON in the
column ``compute_nodes.metrics``, of at most 65,535 bytes. Keys that are plain node ids keep Nova's
meaning, the MB/s of that node. Our keys begin with ``pmc``; N is the position of a node, by
ascending id:

======================  =========================================================
``numa.membw.current``
======================  =========================================================
``pmc``                 schema, 100 · major + minor; a reader accepts only its own major
``pmc.at``              time of the measurement [s since the epoch]
``pmc.every``           how often the metrics are renewed [s]
``pmc.vcpus``           Nova's vcpus_used when sent, without instances that the agent has not seen
``pmc.mb``              Nova's memory_mb_used, likewise
``pmc.hcpu``            the part of ``pmc.vcpus`` that is the host's own, Nova's
                        reserved_host_cpus; absent: 0
``pmc.huge``            the part of ``pmc.mb`` that is in huge pages; absent: the host has none,
                        or unknown
``pmc.pin``             how many of ``pmc.vcpus`` have a CPU of their own; absent: 0
``pmc.turn``            number of earlier placements, modulo the number of memory
                        domains, which breaks ties as on the host; absent: 0
``pmc.k``               history from which the demand of new guests is estimated: the number
                        of guests in the lowest ten bits, and above them the sum of the
                        cores that each of them wanted per vCPU [0.01]; absent: none
``pmc.dN``              CPU wanted [0.01 cores]; -1: unknown
``pmc.pN``              memory promised [MiB]
``pmc.gN``, ``pmc.vN``  guests, and their vCPUs [0.01]
``pmc.lN``              utilisation of the busiest socket link [0.001]; -1: unknown,
                        absent: unknown on all nodes
======================  =========================================================

======================  =========================================================
``numa.membw.max``
======================  =========================================================
``pmc.nodes``           number of nodes
``pmc.cN``, ``pmc.tN``  capacity [0.01 cores], and number of usable CPUs
``pmc.mN``              memory that may be promised [MiB]
``pmc.iN``              node id; absent: N
``pmc.xK``              distances [SLIT]: row by row without the diagonal, six to a value,
                        each in one byte, the first in the lowest; absent: one node
``pmc.sK``              memory domains: for each node, the lowest position of the nodes that
                        share its memory channels, packed likewise; absent: each node is one
======================  =========================================================

The keys are short because the metrics of a host with two nodes have to stay below 2 KB: each
change of the metrics is a database save.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.core.memory_domains import DISTANCE_MAX, distance, merge
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.model import MB, MIB
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nova_numa_pmc import model
    from nova_numa_pmc.state.publication import Publication

CURRENT, MAXIMUM = 'numa.membw.current', 'numa.membw.max'
SCHEMA, MAJOR = 200, 2
#: The metrics of more nodes would not fit into the column.
SENT_NODES_MAX = 64
INTERVAL_DEFAULT_S = 60
#: The value of ``numa.membw.current`` if no node's traffic is known: Nova requires a number, and
#: with 0, MetricsWeigher would consider the host idle. This is more than the traffic of any host,
#: but not so much that other hosts become equal when Nova normalises values to a range of 0 to 1.
UNKNOWN_MB = 10**6

#: New metrics are sent once a demand or a bandwidth differs from the value last sent by more than
#: this share of the node's capacity. In the arena, sending at each audit places guests no better
#: (doc/source/reference/arena.rst), and each new value costs a save of the compute node.
DEADBAND_RATIO = 0.03
#: Time after which the next audit sends metrics again although they are unchanged [s]. The
#: scheduler takes metrics for unknown after five times the sum of this and an audit's interval.
RESEND_S = 600
#: Tolerance of a node's memory figures, as a share of its capacity (assumed). Memory that the
#: kernel itself uses (slabs, page tables) is subtracted from the capacity and changes from tick to
#: tick, and the promises of floating guests are divided among the nodes by capacity.
_MEMORY_RATIO = 0.005

UNKNOWN = -1
GUESTS_BITS = 10
#: Upper bound of values, above any that is sent; six packed bytes are below it.
METRIC_VALUE_MAX = 2**50
#: Distances, or memory domains, in one value.
BYTES_PER_VALUE = 6


class NovaCounts(Record):
    """Nova's counts on the host when metrics are sent, other than vCPUs and memory.

    :param pinned_cpus: number of vCPUs of the instances that the agent has seen that have a CPU of
        their own
    :param reserved_cpus: vCPUs that Nova counts as used by the host itself
    :param huge_page_mb: the memory of these instances that is in huge pages [MiB]; None: the host
        has no huge pages
    """

    pinned_cpus: int = 0
    reserved_cpus: int = 0
    huge_page_mb: int | None = None


NOTHING_COUNTED = NovaCounts()


def count_pinned_cpus(topology: Any) -> int:
    """Return how many CPUs Nova's NUMATopology of a host dedicates to one vCPU each."""
    return sum(len(cell.pinned_cpus) for cell in topology.cells)


def used_huge_page_mb(topology: Any) -> int | None:
    """Return the memory of guests that is in huge pages, by Nova's NUMATopology of a host [MiB].

    :returns: None if the host has no huge pages
    """
    pools = [
        pages
        for cell in topology.cells
        for pages in cell.mempages
        if pages.total and pages.size_kb > min(other.size_kb for other in cell.mempages)
    ]
    return sum(pages.used * pages.size_kb for pages in pools) >> 10 if pools else None


def to_values(
    publication: Publication,
    vcpus_used: int,
    memory_mb_used: int,
    interval_s: float | None = None,
    nova_counts: NovaCounts = NOTHING_COUNTED,
) -> tuple[dict[str, int], dict[str, int]]:
    """Turn a publication into the values of Nova's two metrics.

    :param vcpus_used, memory_mb_used: Nova's own counts now, without instances that the agent has
        not seen, from which the scheduler derives what the publication does not show yet
    :param interval_s: time between nova-compute's metrics, if longer than the agent's interval [s]
    :param nova_counts: Nova's other counts
    :returns: (current, maximum); a plain node id is present if its value is known
    :raises StateError: the host has more nodes than the metrics can hold
    """
    view = publication.view
    if len(view.nodes) > SENT_NODES_MAX:
        raise StateError(
            "%d nodes: Nova's metrics hold at most %d" % (len(view.nodes), SENT_NODES_MAX)
        )
    current = {
        'pmc': SCHEMA,
        'pmc.at': int(publication.taken_s),
        'pmc.every': round(max(publication.interval_s, interval_s or 0)),
        'pmc.vcpus': int(vcpus_used),
        'pmc.mb': int(memory_mb_used),
    }
    _add(current, 'pmc.hcpu', nova_counts.reserved_cpus or None, 1)
    _add(current, 'pmc.pin', nova_counts.pinned_cpus or None, 1)
    _add(current, 'pmc.huge', nova_counts.huge_page_mb, 1)
    _add(current, 'pmc.turn', view.rotation % max(1, len(merge(view)[1])) or None, 1)
    guests = min(int(publication.history.guests), (1 << GUESTS_BITS) - 1)
    if guests:
        current['pmc.k'] = (
            guests | round(100 * publication.history.cores_per_vcpu_sum) << GUESTS_BITS
        )
    maximum = {'pmc.nodes': len(view.nodes)}
    has_gaps = [node.id for node in view.nodes] != list(range(len(view.nodes)))
    linked = any(node.link_ratio is not None for node in view.nodes)
    for position, node in enumerate(view.nodes):
        _add_node(current, maximum, position, node, linked)
        if has_gaps:
            maximum['pmc.i%d' % position] = node.id
    positions = range(len(view.nodes))
    _pack(
        maximum,
        'pmc.x',
        [
            min(DISTANCE_MAX, max(0, round(distance(view, row, column))))
            for row in positions
            for column in positions
            if row != column
        ],
    )
    _pack(maximum, 'pmc.s', view.domains)
    return current, maximum


def total(values: Mapping[str, int], ids: list[str], unknown: int) -> int:
    """Return the sum over these nodes [MB/s], or ``unknown`` if none of their values is known."""
    known_values = [values[node] for node in ids if node in values]
    return sum(known_values) if known_values else unknown


def _add_node(
    current: dict[str, int],
    maximum: dict[str, int],
    position: int,
    node: model.NodeView,
    linked: bool,
) -> None:
    """Add a node's values to both metrics.

    :param linked: whether the utilisation of some node's links is known
    """
    _add(current, str(node.id), node.bandwidth_bytes_per_sec, MB)
    _add(maximum, str(node.id), node.bandwidth_max_bytes_per_sec, MB)
    _add(current, 'pmc.d%d' % position, node.demand_cores, 0.01, UNKNOWN)
    current['pmc.p%d' % position] = -(-node.promised_bytes // MIB)
    current['pmc.g%d' % position] = round(100 * node.guests)
    current['pmc.v%d' % position] = round(100 * node.vcpus)
    _add(current, 'pmc.l%d' % position, node.link_ratio, 0.001, UNKNOWN if linked else None)
    maximum['pmc.c%d' % position] = round(100 * node.cores)
    maximum['pmc.t%d' % position] = node.cpu_count
    maximum['pmc.m%d' % position] = node.capacity_bytes // MIB


def _add(
    values: dict[str, int], key: str, amount: float | None, unit: float, unknown: int | None = None
) -> None:
    value = unknown if amount is None else round(amount / unit)
    if value is not None:
        values[key] = value


@functools.lru_cache(maxsize=256)
def packed_keys(prefix: str, count: int) -> list[str]:
    """Return the keys of this many numbers below 256, :data:`BYTES_PER_VALUE` to a value."""
    return ['%s%d' % (prefix, index) for index in range(-(-count // BYTES_PER_VALUE))]


def _pack(values: dict[str, int], prefix: str, numbers: Sequence[int]) -> None:
    for index, key in enumerate(packed_keys(prefix, len(numbers))):
        part = numbers[index * BYTES_PER_VALUE : (index + 1) * BYTES_PER_VALUE]
        values[key] = int.from_bytes(part, 'little')


def may_reuse(sent: Publication, now: Publication, deadband: float = DEADBAND_RATIO) -> bool:
    """Return whether decisions may still be based on the publication that was sent.

    The number of guests on each node and the total of promised memory must be the same. Remote
    ratios do not count, because only ``explain`` shows them, and neither does traffic on a node
    whose maximum is unknown, because it causes no pressure there.

    :param deadband: by how much each measured utilisation may differ
    """
    return (
        _shape(sent.view) == _shape(now.view)
        and _are_close(
            _promised_bytes(sent.view), _promised_bytes(now.view), len(now.view.nodes) << 20
        )
        and _is_history_near(sent.history, now.history, deadband)
        and all(
            _is_near(before, after, deadband)
            for before, after in zip(sent.view.nodes, now.view.nodes)
        )
    )


def _shape(view: model.HostView) -> tuple[object, ...]:
    """Return the parts of a view that are not measured."""
    return view.distances, view.domains, view.rotation, [node.id for node in view.nodes]


def _promised_bytes(view: model.HostView) -> int:
    """Return the bytes promised on all nodes; those of each node are rounded to whole MiB."""
    return sum(node.promised_bytes for node in view.nodes)


def _is_history_near(sent: model.DemandHistory, now: model.DemandHistory, deadband: float) -> bool:
    """Return whether both histories predict about the same demand for a new guest."""
    before, after = (
        history.cores_per_vcpu_sum / max(1.0, history.guests) for history in (sent, now)
    )
    tolerance = max(1.0, 0.1 * now.guests)
    return _are_close(sent.guests, now.guests, tolerance) and _are_close(before, after, deadband)


def _is_near(sent: model.NodeView, now: model.NodeView, deadband: float) -> bool:
    """Return whether two views of a node differ by no more than the deadband allows."""
    core_limit = deadband * now.cores
    memory_limit = _MEMORY_RATIO * now.capacity_bytes
    maximum = now.bandwidth_max_bytes_per_sec
    rate_limit = math.inf if maximum is None else deadband * maximum
    return (
        sent.cpu_count == now.cpu_count
        and _are_close(sent.guests, now.guests, 0.01)
        and _are_close(sent.vcpus, now.vcpus, 0.01)
        and _are_close(sent.capacity_bytes, now.capacity_bytes, memory_limit)
        and _are_close(sent.promised_bytes, now.promised_bytes, memory_limit)
        and _are_close(sent.cores, now.cores, core_limit)
        and _are_close(sent.demand_cores, now.demand_cores, core_limit)
        and _are_close(sent.bandwidth_bytes_per_sec, now.bandwidth_bytes_per_sec, rate_limit)
        and _are_close(sent.bandwidth_max_bytes_per_sec, maximum, rate_limit)
        and _are_close(sent.link_ratio, now.link_ratio, deadband)
    )


def _are_close(sent: float | None, now: float | None, tolerance: float) -> bool:
    """Return whether two figures differ by at most ``tolerance``; unknown equals only unknown."""
    if sent is None or now is None:
        return sent is now
    return abs(sent - now) <= tolerance
