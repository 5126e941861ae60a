# SPDX-License-Identifier: Apache-2.0
"""nova-compute's options, group ``[numa_pmc]`` of nova.conf on the compute hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = cfg.OptGroup('numa_pmc', help='What nova-compute sends to the scheduler.')

#: The options of the group.
OPTIONS: Sequence[cfg.Opt] = [
    cfg.BoolOpt(
        'cpu_metrics',
        default=False,
        mutable=True,
        help=(
            "Also send the ten CPU metrics of Nova's virt_driver monitor, which the numa_pmc "
            'monitor replaces. This costs a call to libvirt and a save of the compute node at '
            "each audit, and accounts for most of the scheduler's decoding time. Enable it if the "
            'option weight_setting of [metrics] names cpu.* on the controllers, or if a consumer '
            'of notifications needs these metrics.'
        ),
    )
]


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [(GROUP, OPTIONS)]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; this may be called more than once."""
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
