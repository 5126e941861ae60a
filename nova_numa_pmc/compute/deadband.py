# SPDX-License-Identifier: Apache-2.0
"""Decide whether a publication differs enough from the last one sent to replace it. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nova_numa_pmc import model
    from nova_numa_pmc.state.publication import Publication

#: New metrics are sent once a demand or a bandwidth differs from the value last sent by more than
#: this share of the node's capacity. In the arena, sending at each audit places guests no better
#: (doc/source/reference/arena.rst), and each new value costs a save of the compute node.
RATIO = 0.03
#: Time after which the next audit sends metrics again although they are unchanged [s]. The
#: scheduler takes metrics for unknown after five times the sum of this and an audit's interval.
RESEND_S = 600
#: Tolerance of a node's memory figures, as a share of its capacity (assumed). Memory that the
#: kernel itself uses (slabs, page tables) is subtracted from the capacity and changes from tick to
#: tick, and the promises of floating guests are divided among the nodes by capacity.
_MEMORY_RATIO = 0.005


def may_reuse(sent: Publication, now: Publication, deadband: float = RATIO) -> bool:
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
