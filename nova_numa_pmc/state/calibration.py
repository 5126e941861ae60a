# SPDX-License-Identifier: Apache-2.0
"""The bandwidth and the latency of the memory of a host's nodes: their record and its file.

The file is JSON and survives a reboot. Options in ``[counters]`` take precedence over it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from nova_numa_pmc import json_values
from nova_numa_pmc.core.pressure import LOCAL_LATENCY_NS, slit_latencies_ns
from nova_numa_pmc.cpulist import NODES_MAX
from nova_numa_pmc.exceptions import CalibrationError, require_major
from nova_numa_pmc.host import files
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.conf.counters import CounterOptions

PATH = '/%s/calibration.json' % state_files.PERSISTENT
_FORMAT = 'nova-numa-pmc-calibration'
_MAJOR, _MINOR = 1, 0
_SIZE_MAX_BYTES = 1 << 24
#: Sources of a latency: measured here, reported by the firmware, or estimated from its SLIT
#: distance and a local latency.
MEASURED, HMAT, SLIT = 'measured', 'hmat', 'slit'
_SOURCES = (MEASURED, HMAT, SLIT)


class Calibration(Record):
    """Bandwidths and latencies, by position in ``nodes``.

    :param taken_s: CLOCK_REALTIME of the measurement [s since the epoch]
    :param nodes: node ids in ascending order
    :param read_bytes_per_sec: read bandwidth of each node's memory; None if not measured
    :param latencies_ns: latencies without load; each row is from a node's CPUs to the memory of
        each node
    :param sources: source of each of ``latencies_ns``: :data:`MEASURED`, :data:`HMAT` or
        :data:`SLIT`
    """

    taken_s: float
    nodes: tuple[int, ...]
    read_bytes_per_sec: tuple[float | None, ...]
    latencies_ns: tuple[tuple[float, ...], ...]
    sources: tuple[tuple[str, ...], ...]


def fill_matrix(
    measured_ns: Sequence[Sequence[float | None]],
    distances: Sequence[Sequence[int]],
    firmware_ns: Sequence[Sequence[float | None]],
) -> tuple[tuple[tuple[float, ...], ...], tuple[tuple[str, ...], ...]]:
    """Return (latencies [ns], sources), with gaps in the measurements filled from HMAT or SLIT.

    If HMAT does not have a latency either, it is estimated from the distances of SLIT:
    ℓ_nm = ℓ_nn · d_nm / d_nn, where an unknown ℓ_nn is taken to be the median of the known ones.

    :param measured_ns, firmware_ns: matrices by position, with None where unknown
    :param distances: matrix of SLIT's distances, by position
    """
    positions = range(len(distances))
    entries = [
        [
            (measured_ns[n][m], MEASURED)
            if measured_ns[n][m] is not None
            else (firmware_ns[n][m], HMAT)
            for m in positions
        ]
        for n in positions
    ]
    locals_ns = sorted(ns for ns in (entries[n][n][0] for n in positions) if ns is not None)
    median_ns = locals_ns[len(locals_ns) // 2] if locals_ns else LOCAL_LATENCY_NS
    rows = []
    for n in positions:
        local_ns = entries[n][n][0]
        estimates = slit_latencies_ns(distances, median_ns if local_ns is None else local_ns)[n]
        rows.append(
            [
                (estimate, SLIT) if value is None else (value, source)
                for (value, source), estimate in zip(entries[n], estimates)
            ]
        )
    return (
        tuple(tuple(ns for ns, _ in row) for row in rows),
        tuple(tuple(source for _, source in row) for row in rows),
    )


def apply_to(options: CounterOptions, calibration: Calibration) -> CounterOptions:
    """Return the options, with those that the operator has not set taken from a calibration."""
    bandwidth = {
        node: value
        for node, value in zip(calibration.nodes, calibration.read_bytes_per_sec)
        if value is not None
    }
    bandwidth.update(options.bandwidth_max_bytes_per_sec)
    latencies = dict(zip(calibration.nodes, calibration.latencies_ns))
    latencies.update(options.latencies_ns)
    return options._replace(
        bandwidth_max_bytes_per_sec=tuple(sorted(bandwidth.items())),
        latencies_ns=tuple(sorted(latencies.items())),
    )


def with_host_calibration(
    options: CounterOptions, path: str = PATH
) -> tuple[CounterOptions, str | None]:
    """Return the options, completed from the host's calibration file if there is one.

    :returns: (options, problem); the problem is None unless the file cannot be used
    """
    try:
        calibration = read(path)
    except CalibrationError as error:
        return options, str(error)
    return (apply_to(options, calibration) if calibration else options), None


def config_lines(calibration: Calibration) -> list[str]:
    """Return a calibration as lines of the group ``[counters]`` of a configuration file."""
    lines = ['[counters]']
    bandwidths = [
        '%d:%.0f' % (node, value / 1e6)
        for node, value in zip(calibration.nodes, calibration.read_bytes_per_sec)
        if value is not None
    ]
    if bandwidths:
        lines.append('node_bandwidth_max = ' + ','.join(bandwidths))
    lines.append(
        'latency_ns = '
        + ','.join(
            '%d:%s' % (node, ' '.join('%.1f' % value for value in row))
            for node, row in zip(calibration.nodes, calibration.latencies_ns)
        )
    )
    return lines


def to_data(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as plain data for JSON."""
    return dict(calibration._asdict(), format=_FORMAT, version=[_MAJOR, _MINOR])


def encode(calibration: Calibration) -> str:
    """Return the text of a calibration's file."""
    return json.dumps(to_data(calibration), indent=1, allow_nan=False) + '\n'


def decode(text: str) -> Calibration:
    """Return the :class:`Calibration` in a file's text.

    :raises CalibrationError: the text is malformed; the message has the reason
    """
    try:
        data = json.loads(text)
        if data['format'] != _FORMAT:
            raise ValueError('not a calibration file')
        require_major(data['version'][0], _MAJOR)
        return _from_data(data)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise CalibrationError('%.200s' % (error,)) from None


def _from_data(data: Any) -> Calibration:
    nodes = tuple(json_values.integer(node, NODES_MAX - 1) for node in data['nodes'])
    count = len(nodes)
    if not 0 < count <= NODES_MAX or list(nodes) != sorted(set(nodes)):
        raise ValueError('node ids are missing, too many or not in ascending order')
    bandwidths = tuple(
        None if value is None else float(json_values.number(value, 1e14, 1e6))
        for value in json_values.sequence(data['read_bytes_per_sec'], count, count)
    )
    latencies = tuple(
        tuple(float(json_values.number(value, 1e6, 0.1)) for value in row)
        for row in _square(data['latencies_ns'], count)
    )
    sources = tuple(
        tuple(json_values.one_of(source, _SOURCES) for source in row)
        for row in _square(data['sources'], count)
    )
    taken_s = float(json_values.number(data['taken_s'], 1e12))
    return Calibration(taken_s, nodes, bandwidths, latencies, sources)


def _square(rows: Any, count: int) -> list[list[Any]]:
    return [
        json_values.sequence(row, count, count) for row in json_values.sequence(rows, count, count)
    ]


def read(path: str = PATH) -> Calibration | None:
    """Return the host's :class:`Calibration`; None if there is none.

    :raises CalibrationError: the file cannot be used; the message names it and the remedy
    """
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read(_SIZE_MAX_BYTES)
        return decode(text)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, CalibrationError) as error:
        raise CalibrationError(
            '%s: %s: create it again with nova-numa-rebalance calibrate, or remove it'
            % (path, error)
        ) from None


def write(calibration: Calibration, path: str = PATH) -> None:
    """Replace the file atomically."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o755, exist_ok=True)
    files.replace_file(path, encode(calibration).encode(), '%s.%d' % (path, os.getpid()))
