# SPDX-License-Identifier: Apache-2.0
"""Convert histories to plain data and back, for a file that outlasts a reboot.

The data does not include where guests ran, which the first intervals show again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.core.demand.histories import (
    BYTES_UNIT,
    CORES_UNIT,
    FLAVOR_GUESTS_MAX,
    FLAVORS_MAX,
    GUESTS_MAX,
    GuestHistory,
    Histories,
    Series,
    UsageHistory,
)
from nova_numa_pmc.core.demand.streams import BIN_COUNT, Stream
from nova_numa_pmc.cpulist import NODES_MAX, is_label, is_number
from nova_numa_pmc.exceptions import require_major

if TYPE_CHECKING:
    from typing import Any

MAJOR, MINOR = 1, 0
_VCPUS_MAX = 1 << 16
#: A value above any real demand, traffic, variance or time: a file with a higher one is damaged.
_HISTORY_VALUE_MAX = 1e30


def to_data(histories: Histories) -> dict[str, Any]:
    """Return histories as plain data, with at most the :data:`GUESTS_MAX` guests seen last."""
    scales = histories.minutes.scale, histories.day.scale
    latest_guests = sorted(histories.guests.items(), key=lambda item: -item[1].seen_s)[:GUESTS_MAX]
    return {
        'schema': '%d.%d' % (MAJOR, MINOR),
        'clock_s': _rounded(histories.clock_s),
        'guests': {
            uuid: dict(
                _series_data(history, scales),
                flavor=history.flavor,
                vcpus=history.vcpus,
                seen_s=_rounded(history.seen_s),
                measured_s=_rounded(history.measured_s),
            )
            for uuid, history in latest_guests
        },
        'others': {
            '%d' % node: _series_data(history, scales)
            for node, history in histories.non_guest.items()
        },
        'flavors': [
            [name, _rounded(count), _rounded(total)]
            for name, (count, total) in histories.flavors.items()
        ],
    }


def from_data(data: Any) -> Histories:
    """Return the histories that plain data describes.

    :raises ValueError: the data is damaged, or was written by a later major version
    """
    try:
        require_major(_text(data['schema']), MAJOR)
        histories = Histories(_amount(data['clock_s']))
        for uuid, fields in json_values.mapping(data['guests'], GUESTS_MAX).items():
            histories.guests[_text(uuid)] = GuestHistory(
                None if fields['flavor'] is None else _text(fields['flavor']),
                int(json_values.number(fields['vcpus'], _VCPUS_MAX)),
                min(histories.clock_s, _amount(fields['seen_s'])),
                _amount(fields['measured_s']),
                *_series_from_data(fields),
            )
        for node, fields in json_values.mapping(data['others'], NODES_MAX).items():
            if not is_number(node, 5):
                raise ValueError('%.40r is not a node' % node)
            histories.non_guest[int(node)] = UsageHistory(*_series_from_data(fields))
        for name, count, total in json_values.sequence(data['flavors'], FLAVORS_MAX):
            if json_values.number(count, FLAVOR_GUESTS_MAX) > 0:
                histories.flavors[None if name is None else _text(name)] = count, _amount(total)
        return histories
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError('%s: %.200s' % (type(error).__name__, error)) from None


def _series_data(
    history: UsageHistory, scales: tuple[float, float]
) -> dict[str, list[list[float]]]:
    return {
        name: [
            _stream_data(stream, scale)
            for stream, scale in zip((series.minutes, series.day), scales)
        ]
        for name, series in (('demand', history.demand), ('traffic', history.bandwidth))
    }


def _stream_data(stream: Stream, scale: float) -> list[float]:
    """Return a stream as a list [weight in seconds, mean, variance, bin, share, bin, share …].

    The list is empty if nothing was observed, or only so long ago that no weight is left of it.
    """
    weight, mean, variance = _rounded(stream.weight / scale), stream.mean, stream.variance
    if not weight or mean is None or variance is None:
        return []
    return [
        weight,
        _rounded(mean),
        _rounded(variance),
        *(part for index, share in stream.bins() for part in (index, _rounded(share))),
    ]


def _rounded(value: float) -> float:
    return float('%.5g' % value)


def _series_from_data(data: Any) -> tuple[Series, Series]:
    demand, bandwidth = (
        Series(
            unit, *(_stream_from_data(values) for values in json_values.sequence(data[name], 2, 2))
        )
        for name, unit in (('demand', CORES_UNIT), ('traffic', BYTES_UNIT))
    )
    return demand, bandwidth


def _stream_from_data(values: Any) -> Stream:
    """Return the :class:`Stream` of a list from :func:`_stream_data`, at a scale of 1."""
    if not json_values.sequence(values, 3 + 2 * BIN_COUNT):
        return Stream()
    weight, mean, variance = map(_amount, values[:3])
    if not weight > 0:
        raise ValueError('a stream has no weight')
    bins = dict(zip(values[3::2], map(_amount, values[4::2])))
    if len(bins) * 2 != len(values) - 3:
        raise ValueError('%.40r is not a list of bins' % (values[3:],))
    return Stream(
        weight,
        mean,
        variance,
        {
            json_values.integer(index, BIN_COUNT - 1): share * weight
            for index, share in bins.items()
        },
    )


def _text(value: Any) -> str:
    text = json_values.of_type(str, value)
    if not is_label(text):
        raise ValueError('%.40a is too long or has control characters' % text)
    return text


def _amount(value: Any) -> float:
    return json_values.number(value, _HISTORY_VALUE_MAX)
