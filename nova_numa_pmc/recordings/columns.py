# SPDX-License-Identifier: Apache-2.0
"""Convert a sample to columns of plain values, and such columns to a sample, checking them.

In columns, names are written only once for all guests, and values of the same kind are next to
each other, so that they compress well. An unknown column is ignored, and a missing one takes the
default of its field, so that files from older and newer writers can be read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import checked
from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.sample_records import DeviceSample, GuestSample, NodeSample, Sample, file_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    from nova_numa_pmc.record import Record

    _Row = TypeVar('_Row', NodeSample, GuestSample)

#: A measured rate is not more precise than this.
SIGNIFICANT_DIGITS = 6

_NUMBER, _COUNT, _FLAG, _TEXT, _TEXTS, _SHARES, _DEVICES = range(7)
#: Kinds of fields; a field that is not listed is a number or None.
_KINDS: dict[type[Record], dict[str, int]] = {
    NodeSample: {'id': _COUNT, 'cpi_reliable': _FLAG},
    GuestSample: {
        'uuid': _TEXT,
        'name': _TEXT,
        'source': _TEXT,
        'basis': _TEXT,
        'cores_by_node': _SHARES,
        'bytes_by_node': _SHARES,
        'cpi_reliable': _FLAG,
        'devices': _DEVICES,
    },
    Sample: {'source': _TEXT, 'problems': _TEXTS},
}
#: Inclusive bounds: the highest node id, and a number beyond any real rate.
_NODE_MAX, _NUMBER_MAX = 16383, 1e30


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
        scalars = {
            name: _value(_KINDS[Sample].get(name, _NUMBER), data[name])
            for name in ('taken_s', 'elapsed_s', 'source', 'problems')
        }
        if scalars['taken_s'] is None or scalars['elapsed_s'] is None:
            raise ValueError('missing taken_s or elapsed_s')
        return Sample(
            nodes=_rows(data['nodes'], NodeSample),
            guests=_rows(data['guests'], GuestSample),
            **scalars,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError('not a sample: %s' % error) from None


def _columns(records: Sequence[_Row], kind: type[_Row]) -> dict[str, list[Any]]:
    return {
        name: [_to_plain(value) for value in column]
        for name, column in zip(file_names(kind).values(), zip(*records))
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
        field: checked.of_type(list, columns[name])
        for field, name in file_names(kind).items()
        if name in checked.of_type(dict, columns)
    }
    if len({len(column) for column in columns_by_field.values()}) > 1:
        raise ValueError('columns of unequal length')
    kinds = _KINDS[kind]
    rows = [
        [_value(kinds.get(field, _NUMBER), value) for value in column]
        for field, column in columns_by_field.items()
    ]
    return tuple(kind(**dict(zip(columns_by_field, row))) for row in zip(*rows))


def _value(kind: int, value: Any) -> Any:
    if kind == _NUMBER:
        return None if value is None else _number(value)
    if kind == _COUNT:
        return _node(value)
    if kind == _FLAG:
        return checked.of_type(bool, value)
    if kind == _TEXT:
        return checked.of_type(str, value)
    if kind == _TEXTS:
        return tuple(checked.of_type(str, text) for text in checked.of_type(list, value))
    if kind == _SHARES:
        return tuple((_node(node), _number(share)) for node, share in checked.of_type(list, value))
    return tuple(
        DeviceSample(
            checked.of_type(str, address),
            None if node is None else _node(node),
            None if local is None else checked.of_type(bool, local),
        )
        for address, node, local, *_ in checked.of_type(list, value)
    )


def _number(value: object) -> float:
    return checked.number(value, _NUMBER_MAX, -_NUMBER_MAX)


def _node(value: object) -> int:
    return checked.integer(value, _NODE_MAX)
