# SPDX-License-Identifier: Apache-2.0
"""Nova's own weighers, vectorised; the referee compares them with Nova's code."""

import numpy as np

from tests.arena import parameters as p

#: ``[metrics] weight_of_unavailable``
UNAVAILABLE = -10000.0


def normalized(weights, least=None):
    """Stretch weights over 0 … 1 as ``nova.weights.normalize`` does; if all are equal, to 0.

    :param least: a weigher's ``minval``
    """
    low = weights.min() if least is None else least
    high = weights.max()
    return np.zeros(len(weights)) if low == high else (weights - low) / (high - low)


def stock(view, asked, ram_multiplier=1.0):
    """Weigh as Nova 34 does by default.

    Source: nova 34.0.0, nova/scheduler/weights/{cpu,ram,disk,io_ops}.py and
    https://docs.openstack.org/nova/latest/admin/scheduling.html#weights.
    Formula: Σ multiplier · stretched weight: free vCPUs (total · cpu_allocation_ratio − used),
    free RAM, free disk, each 1.0 and from 0 on; building instances −1.0.
    Deviations: none. The other weighers are 0 or equal on hosts of one version without PCI
    requests, failed builds and server groups.
    """
    del asked
    free_vcpus = np.maximum(0, view.vcpus * p.CPU_RATIO - view.vcpus_used)
    free_ram = np.maximum(0, view.ram_mib - p.RESERVED_MIB - view.ram_used_mib)
    free_disk = np.maximum(0, p.DISK_GB - view.disk_used_gb) * 1024
    return (
        normalized(free_vcpus, 0)
        + ram_multiplier * normalized(free_ram, 0)
        + normalized(free_disk, 0)
        - normalized(np.maximum(0, view.io_ops), 0)
    )


def pack(view, asked):
    """Weigh as Nova 34 if an operator packs: ``ram_weight_multiplier = -1``.

    Source: nova 34.0.0,
    https://docs.openstack.org/nova/latest/configuration/config.html#filter_scheduler.
    Formula: as :func:`stock`, free RAM −1.0.
    Deviations: none; CPUs and disk still spread, as with that option alone. ``best-fit`` is an
    operator who packs by all of them.
    """
    return stock(view, asked, ram_multiplier=-1.0)


def metrics(view, asked, multiplier=1.0):
    """Weigh as Nova 34 with MetricsWeigher and ``weight_setting = cpu.percent=-1.0``.

    Source: nova 34.0.0, nova/scheduler/weights/metrics.py,
    https://docs.openstack.org/nova/latest/admin/scheduling.html#metricsweigher.
    Formula: stock + multiplier (1.0) · stretched −cpu.percent; a host without the metric −10000
    before stretching (``required = False``, else its boots fail).
    Deviations: cpu.percent is a mean over 15 minutes; Nova's is one interval's. Nova keeps
    whole percentages, some of them one too low, because 0.29 · 100 is below 29.
    """
    percent = np.floor(np.rint(100 * view.busy_ratio) / 100 * 100)
    raw = np.where(view.loaded, -percent, UNAVAILABLE)
    return stock(view, asked) + multiplier * normalized(raw)
