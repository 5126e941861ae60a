# SPDX-License-Identifier: Apache-2.0
"""Turn a host's situation of one interval into that of a longer time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.rates import shares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.core.rebalance.plan_records import GuestLoad, Situation

#: Why a guest is not moved that was not measured for long enough.
YOUNG = 'young'


def as_it_lasts(situation: Situation, horizon: int, measured_min_s: float) -> Situation:
    """Return a situation at the guests' mean demands, with widened guests at home.

    Guests access memory in proportion to their CPU time, as in the interval. What waited in the
    interval is left out: it says nothing about another demand by itself.

    :param horizon: index of :attr:`GuestLoad.mean_cores`
    :param measured_min_s: guests that were measured for less than this stay where they are [s]
    """
    demand_changes: dict[int, float] = {}
    bandwidth_changes: dict[int, float] = {}
    guests = []
    for guest in situation.guests:
        if not guest.mean_cores or guest.demand_cores is None:
            guests.append(guest._replace(why_fixed=guest.why_fixed or YOUNG))
            continue
        lasting_guest = _at_home(guest, guest.mean_cores[horizon])
        if guest.measured_s < measured_min_s:
            lasting_guest = lasting_guest._replace(why_fixed=guest.why_fixed or YOUNG)
        guests.append(lasting_guest)
        for sign, load in ((-1, guest), (1, lasting_guest)):
            _add(demand_changes, load.cores_by_node, sign * (load.demand_cores or 0.0))
            _add(
                bandwidth_changes, load.bytes_by_node, sign * (load.bandwidth_bytes_per_sec or 0.0)
            )
    nodes = tuple(
        node._replace(
            demand_cores=_changed(node.demand_cores, demand_changes.get(node.id, 0.0)),
            bandwidth_bytes_per_sec=_changed(
                node.bandwidth_bytes_per_sec, bandwidth_changes.get(node.id, 0.0)
            ),
        )
        for node in situation.view.nodes
    )
    return situation._replace(
        view=situation.view._replace(nodes=nodes), guests=tuple(guests), waiting_cores=()
    )


def _at_home(guest: GuestLoad, demand_cores: float) -> GuestLoad:
    """Return a guest that wants and gets so many cores, on its home nodes if it is widened."""
    ratio = demand_cores / guest.served_cores if guest.served_cores else 0.0
    lasting_guest = guest._replace(
        demand_cores=demand_cores,
        served_cores=demand_cores,
        lines_per_sec=None if guest.lines_per_sec is None else ratio * guest.lines_per_sec,
        bandwidth_bytes_per_sec=None
        if guest.bandwidth_bytes_per_sec is None
        else ratio * guest.bandwidth_bytes_per_sec,
    )
    if not set(guest.home_nodes) < set(guest.held_nodes):
        return lasting_guest
    return lasting_guest._replace(
        held_nodes=guest.home_nodes,
        cores_by_node=tuple((node, demand_cores) for node in guest.home_nodes),
        remote_ratio=None,  # it was counted on all nodes that it may use
    )


def _add(sums: dict[int, float], by_node: Iterable[tuple[int, float]], amount: float) -> None:
    for node, share in shares(by_node).items():
        sums[node] = sums.get(node, 0.0) + share * amount


def _changed(value: float | None, change: float) -> float | None:
    return None if value is None else max(0.0, value + change)
