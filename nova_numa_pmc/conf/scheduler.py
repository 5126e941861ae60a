# SPDX-License-Identifier: Apache-2.0
"""The scheduler's options, group ``[numa_pmc]`` of nova.conf on the controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = cfg.OptGroup(
    'numa_pmc', help='How the scheduler chooses hosts by the pressure on their NUMA nodes.'
)
#: What a host of unknown pressure weighs.
MEAN, WORST = 'mean', 'worst'

_OPTIONS: Sequence[cfg.Opt] = [
    cfg.FloatOpt(
        'weight_multiplier',
        default=1.0,
        help=(
            'Multiplier of NUMAPressureWeigher; 0 turns it off. The metadata key '
            'numa_pmc_weight_multiplier of a host aggregate overrides it; of several, the '
            'lowest counts.'
        ),
    ),
    cfg.FloatOpt(
        'weight_step',
        default=0.05,
        min=0.001,
        max=1.0,
        help=(
            'Pressures that differ by less than this weigh the same. Nova stretches even the '
            'smallest difference between hosts to the whole multiplier.'
        ),
    ),
    cfg.StrOpt(
        'unknown_weight',
        default=MEAN,
        choices=[
            (MEAN, 'as much as the known ones on average'),
            (WORST, 'as much as the worst of the known ones'),
        ],
        help='How to weigh a host whose pressure is unknown: no monitor, or old metrics.',
    ),
    cfg.FloatOpt(
        'stale_after',
        default=5.0,
        min=1.0,
        max=10000.0,
        help=(
            'Metrics older than this many of their own update intervals (60 seconds each by '
            'default) count as unknown.'
        ),
    ),
    cfg.BoolOpt(
        'charge_new_guests',
        default=True,
        help=(
            'Charge hosts for guests that have arrived since their metrics were recorded, which '
            'Nova counts at once. Without it, all guests of one request may go to one host.'
        ),
    ),
    cfg.FloatOpt(
        'max_pressure',
        default=0.0,
        min=0.0,
        max=64.0,
        help=(
            'NUMAPressureFilter refuses a host when the guest would leave a higher pressure on '
            'the nodes that it would use (1: saturated). 0: no ceiling, because what the guest '
            'itself and others too new to be measured will use is estimated, and a request that '
            'every host refuses ends in ERROR. The extra spec numa_pmc:max_pressure of a flavor '
            'overrides it.'
        ),
    ),
    cfg.BoolOpt(
        'require_one_node',
        default=False,
        help=(
            'NUMAPressureFilter refuses hosts where the guest does not fit on one node. A '
            'flavor asks for the same with the extra spec numa_pmc:policy=one_node.'
        ),
    ),
    cfg.BoolOpt(
        'refuse_unknown',
        default=False,
        help='NUMAPressureFilter refuses hosts of unknown pressure. By default they pass.',
    ),
]


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """List (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [(GROUP, _OPTIONS)]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; twice is fine."""
    conf.register_group(GROUP)
    conf.register_opts(_OPTIONS, group=GROUP)
