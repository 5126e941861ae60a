# SPDX-License-Identifier: Apache-2.0
"""Encode and decode distances and memory domains in Nova's metrics.

:mod:`metrics_encoder` lists the keys.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.core.memory_domains import (
    LOCAL_DISTANCE,
    NEAR_DEFAULT,
    distance,
    domains_from_distances,
    domains_from_labels,
    threshold,
)
from nova_numa_pmc.json_values import integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model

    Distances = tuple[tuple[int, ...], ...]

#: Upper bound of values, above any that is sent; six packed bytes are below it.
METRIC_VALUE_MAX = 2**50
_DISTANCES_PER_VALUE = _DOMAINS_PER_VALUE = 6


def add_distances(maximum: dict[str, int], view: model.HostView) -> None:
    """Add the distances between nodes to the values of a metric."""
    count = len(view.nodes)
    distances = [
        min(255, max(0, round(distance(view, row, column))))
        for row in range(count)
        for column in range(count)
        if row != column
    ]
    if len(set(distances)) <= 1:
        maximum['pmc.far'] = distances[0] if distances else LOCAL_DISTANCE
        return
    for start in range(0, len(distances), _DISTANCES_PER_VALUE):
        maximum['pmc.x%d' % (start // _DISTANCES_PER_VALUE)] = int.from_bytes(
            distances[start : start + _DISTANCES_PER_VALUE], 'little'
        )


def add_domains(maximum: dict[str, int], view: model.HostView) -> None:
    """Add the memory domains of the nodes to the values of a metric."""
    near_distance, is_whole = threshold(view)
    if near_distance != NEAR_DEFAULT:
        maximum['pmc.domain'] = round(near_distance)
    for start in range(0, 0 if is_whole else len(view.domains), _DOMAINS_PER_VALUE):
        maximum['pmc.s%d' % (start // _DOMAINS_PER_VALUE)] = int.from_bytes(
            view.domains[start : start + _DOMAINS_PER_VALUE], 'little'
        )


def read_domains(maximum: Mapping[str, Any], distances: Distances) -> tuple[int, ...]:
    """Return the memory domains of the nodes, as in :class:`model.HostView`."""
    if 'pmc.s0' not in maximum:
        return domains_from_distances(
            distances, integer(maximum.get('pmc.domain', NEAR_DEFAULT), METRIC_VALUE_MAX)
        )
    count = len(distances)
    labels = b''.join(
        (integer(maximum['pmc.s%d' % index], METRIC_VALUE_MAX) % 256**_DOMAINS_PER_VALUE).to_bytes(
            _DOMAINS_PER_VALUE, 'little'
        )
        for index in range(-(-count // _DOMAINS_PER_VALUE))
    )
    return domains_from_labels(labels[:count])


def read_distances(count: int, maximum: Mapping[str, Any]) -> tuple[Distances, int]:
    """Return the distances, and the smallest distance between two nodes."""
    far = maximum.get('pmc.far')
    if far is not None:
        return _square(count, (integer(far, METRIC_VALUE_MAX),), 1)
    value_count = -(-count * (count - 1) // _DISTANCES_PER_VALUE)
    return _square(
        count,
        tuple(
            integer(maximum['pmc.x%d' % index], METRIC_VALUE_MAX) for index in range(value_count)
        ),
        _DISTANCES_PER_VALUE,
    )


@lru_cache(maxsize=256)  # hosts of the same model share their distances
def _square(count: int, values: tuple[int, ...], width: int) -> tuple[Distances, int]:
    packed = b''.join((value % 256**width).to_bytes(width, 'little') for value in values)
    if width == 1:
        packed *= count * (count - 1)
    rows = []
    for position in range(count):
        row = list(packed[position * (count - 1) : (position + 1) * (count - 1)])
        row.insert(position, LOCAL_DISTANCE)
        rows.append(tuple(row))
    nearest = min(packed[: count * (count - 1)], default=255)
    return tuple(rows), nearest if count > 1 else 255
