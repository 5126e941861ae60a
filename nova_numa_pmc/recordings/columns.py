# SPDX-License-Identifier: Apache-2.0
"""Convert a sample to columns of plain values, and such columns to a sample, checking them.

In columns, names are written only once for all guests, and values of the same kind are next to
each other, so that they compress well. An unknown column is ignored, and a missing one takes the
default of its field, so that files from older and newer writers can be read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.cpulist import NODES_MAX
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.sample_records import JSON_NAMES, DeviceSample, GuestSample, NodeSample, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from nova_numa_pmc.record import Record

    _Row = TypeVar('_Row', NodeSample, GuestSample)

#: A measured rate is not more precise than this.
SIGNIFICANT_DIGITS = 6

#: A number beyond any real rate.
_NUMBER_MAX = 1e30

#: {field: the name of its column}, if they differ. Columns are never renamed.
_COLUMN_NAMES = {**JSON_NAMES, 'basis': 'sure'}


def to_columns(sample: Sample) -> dict[str, Any]:
    """Return a sample as dicts, lists and scalars.

    Times are rounded to milliseconds, and other floats to six significant digits.
    """
    return {
        'taken_s': round(sample.taken_s, 3),
        'elapsed_s': round(sample.elapsed_s, 3),
        'source': sample.source,
        'problems': list(sample.problems),
        'nodes': _columns(sample.nodes, NodeSample),
        'guests': _columns(sample.guests, GuestSample),
    }


def from_columns(data: Any) -> Sample:
    """Return the sample from the output of :func:`to_columns`.

    :raises RecordingError: the data is something else
    """
    try:
        return Sample(
            taken_s=_number(data['taken_s']),
            elapsed_s=_number(data['elapsed_s']),
            nodes=_rows(data['nodes'], NodeSample),
            guests=_rows(data['guests'], GuestSample),
            source=_text(data['source']),
            problems=_texts(data['problems']),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError('not a sample: %s' % error) from None


def column_names(kind: type[NodeSample] | type[GuestSample]) -> dict[str, str]:
    """Return {field: the name of its column} for a kind of sample."""
    return {field: _COLUMN_NAMES.get(field, field) for field in kind._fields}


def _columns(records: Sequence[_Row], kind: type[_Row]) -> dict[str, list[Any]]:
    return {
        name: [_to_plain(value) for value in column]
        for name, column in zip(column_names(kind).values(), zip(*records))
    }


def _to_plain(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float('%.*g' % (SIGNIFICANT_DIGITS, value))
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value]
    return value


def _rows(columns: Any, kind: type[_Row]) -> tuple[_Row, ...]:
    columns_by_field = {
        field: json_values.of_type(list, columns[name])
        for field, name in column_names(kind).items()
        if name in json_values.of_type(dict, columns)
    }
    if len({len(column) for column in columns_by_field.values()}) > 1:
        raise ValueError('columns of unequal length')
    parsers = _PARSERS[kind]
    rows = [
        [parsers.get(field, _optional_number)(value) for value in column]
        for field, column in columns_by_field.items()
    ]
    return tuple(kind(**dict(zip(columns_by_field, row))) for row in zip(*rows))


def _number(value: object) -> float:
    return json_values.number(value, _NUMBER_MAX, -_NUMBER_MAX)


def _optional_number(value: object) -> float | None:
    return None if value is None else _number(value)


def _node(value: object) -> int:
    return json_values.integer(value, NODES_MAX - 1)


def _flag(value: object) -> bool:
    return json_values.of_type(bool, value)


def _text(value: object) -> str:
    return json_values.of_type(str, value)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(text) for text in json_values.of_type(list, value))


def _amounts_by_node(value: object) -> tuple[tuple[int, float], ...]:
    return tuple(
        (_node(node), _number(amount)) for node, amount in json_values.of_type(list, value)
    )


def _devices(value: object) -> tuple[DeviceSample, ...]:
    return tuple(
        DeviceSample(
            _text(address),
            None if node is None else _node(node),
            None if local is None else _flag(local),
        )
        for address, node, local, *_ in json_values.of_type(list, value)
    )


#: Parsers of fields; a field that is not listed is a number or None.
_PARSERS: dict[type[Record], dict[str, Callable[[object], object]]] = {
    NodeSample: {'id': _node, 'cpi_reliable': _flag},
    GuestSample: {
        'uuid': _text,
        'name': _text,
        'source': _text,
        'basis': _text,
        'cores_by_node': _amounts_by_node,
        'bytes_by_node': _amounts_by_node,
        'cpi_reliable': _flag,
        'devices': _devices,
    },
}
