# SPDX-License-Identifier: Apache-2.0
"""Refuse to measure on busy CPUs, where others would be disturbed and the figures be too low."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.host import cpu_times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nova_numa_pmc import model

#: A host busier than this is not measured: guests would be disturbed, and the figures wrong.
BUSY_MAX_RATIO = 0.1
#: Time over which to measure how busy the host is.
_BUSY_CHECK_S = 1.0


def read_ratios(
    read: Callable[[], dict[int, int] | None] = lambda: cpu_times.read().busy_ns,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> dict[int, float]:
    """Return {CPU: the share of a second for which it was busy}; empty if that is not reported.

    :param read: returns {CPU: its busy time so far [ns]}, or None if that is not reported
    """
    before_ns, start_s = read(), clock()
    wait(_BUSY_CHECK_S)
    return cpu_times.cores_between(before_ns, read(), round((clock() - start_s) * 1e9))


def refuse_if_busy(ratios: Mapping[int, float], host: model.Topology) -> None:
    """Raise an error if the host is busy, or might be, or if an isolated CPU is.

    An isolated CPU that is busy has a poller or a real-time vCPU, which must not be interrupted.

    :param ratios: as :func:`read_ratios` returns them
    :raises CalibrationError: the mean of the ratios, or the ratio of an isolated CPU, is above
        :data:`BUSY_MAX_RATIO`, or they are unknown
    """
    isolated = host.online_cpus.difference(*(node.cpus for node in host.nodes))
    busy = [cpu for cpu in isolated if ratios.get(cpu, 0.0) > BUSY_MAX_RATIO]
    if busy:
        raise CalibrationError(
            'isolated CPUs %s are busy, and what runs there would be disturbed: calibrate while '
            'they are idle, or use --force' % format_cpulist(busy)
        )
    ratio = sum(ratios.values()) / len(ratios) if ratios else None
    if ratio is None or ratio > BUSY_MAX_RATIO:
        raise CalibrationError(
            'the host is %s, so guests would be disturbed and the figures would be too low: '
            'calibrate before guests arrive, or use --force'
            % (
                'possibly busy (its CPU times cannot be read)'
                if ratio is None
                else '%.0f %% busy' % (100 * ratio)
            )
        )
