# SPDX-License-Identifier: Apache-2.0
"""nova-compute's options, group ``[numa_pmc]`` of nova.conf on the compute hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = cfg.OptGroup('numa_pmc', help='What nova-compute sends to the scheduler.')

_OPTIONS: Sequence[cfg.Opt] = [
    cfg.BoolOpt(
        'cpu_metrics',
        default=False,
        mutable=True,
        help=(
            "Also send the ten CPU metrics of Nova's monitor virt_driver, whose place ours takes. "
            'They cost a call to libvirt and a save of the compute node at each audit, and '
            "account for most of the scheduler's decoding time. Set it where the option "
            'weight_setting of [metrics] names cpu.* on the controllers, or a consumer of '
            'notifications wants them.'
        ),
    ),
    cfg.FloatOpt(
        'metrics_deadband',
        default=0.025,
        mutable=True,
        min=0.0,
        max=0.5,
        help=(
            'Metrics are left as they were sent, and the compute node is not saved for them, '
            'while no demand or bandwidth differs from what was sent by more than this share of '
            "its node's capacity, and guests and promised memory are the same. Half of "
            'weight_step by default. 0: send each measurement.'
        ),
    ),
    cfg.IntOpt(
        'metrics_heartbeat',
        default=600,
        mutable=True,
        min=0,
        max=86400,
        help=(
            'Unchanged metrics are sent again after this time [seconds]. After stale_after times '
            'this long, the scheduler treats them as unknown.'
        ),
    ),
]


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """List (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [(GROUP, _OPTIONS)]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; twice is fine."""
    conf.register_group(GROUP)
    conf.register_opts(_OPTIONS, group=GROUP)
