# SPDX-License-Identifier: Apache-2.0
"""The scheduler's options, group ``[numa_pmc]`` of nova.conf on the controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg, types

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = cfg.OptGroup(
    'numa_pmc', help='How the scheduler chooses hosts by the pressure on their NUMA nodes.'
)
#: Values of the option ``mode``.
ON, SHADOW, OFF = 'on', 'shadow', 'off'
#: To whom the filter's options do not apply: Nova names the host to leave, as it does for a resize
#: by default (nova/compute/api.py).
_LEAVING = (
    "guests that leave a host (evacuation, migration, and a resize unless Nova's "
    'allow_resize_to_same_host is true)'
)


class _LowerCase(types.String):
    """One of some words in lower case, which may be written in any case."""

    def __call__(self, value: object) -> str:
        return super().__call__(value).lower()


#: The options of the group.
OPTIONS: Sequence[cfg.Opt] = [
    cfg.Opt(
        'mode',
        _LowerCase(
            choices=[
                (ON, "the penalty is subtracted from the host's weight"),
                (
                    SHADOW,
                    'nothing is subtracted; each decision logs a line of JSON with what the '
                    'penalty would have changed',
                ),
                (OFF, 'nothing is computed'),
            ],
            ignore_case=True,
        ),
        default=ON,
        mutable=True,
        help=(
            'What NUMAPressureWeigher does. The metadata key numa_pmc_mode of a host aggregate '
            'overrides it for its hosts; if a host is in several aggregates, the most cautious '
            'mode applies. List the weigher last in weight_classes: in shadow mode it only knows '
            'the weights given by the weighers before it.'
        ),
    ),
    cfg.FloatOpt(
        'weight_multiplier',
        default=500.0,
        mutable=True,
        help=(
            'Multiplier of the penalty of NUMAPressureWeigher: the penalty (0 to 1) times this '
            "value is subtracted from a host's weight. The penalty is what guests would lose on "
            'the host, as a share of the CPU time that the new guest wants: with 500, a loss of '
            "one percent counts 5, while Nova's own weighers together make a difference of at "
            'most five by default. These therefore matter only among hosts where next to nothing '
            'would be lost, and so does the random part of the penalty. 0 turns '
            'the weigher off. The metadata key numa_pmc_weight_multiplier of a host aggregate '
            'overrides it; if a host is in several aggregates, the lowest value applies.'
        ),
    ),
    cfg.FloatOpt(
        'penalty_floor',
        default=0.0,
        mutable=True,
        min=0.0,
        max=1.0,
        help=(
            'Loss below which a host has no penalty, so that the other weighers choose among '
            'these hosts. Set it to 0.4 for clouds that fill one host after another '
            '(ram_weight_multiplier below 0): with 0, smaller losses would spread the guests. '
            'These hosts have no jitter, so that requests at the same time would get the same '
            'one: set [filter_scheduler] host_subset_size to 5 as well. The metadata key '
            'numa_pmc_penalty_floor of a host aggregate overrides it; if a host is in several '
            'aggregates, the lowest value applies.'
        ),
    ),
    cfg.FloatOpt(
        'max_pressure',
        default=0.0,
        mutable=True,
        min=0.0,
        max=64.0,
        help=(
            'NUMAPressureFilter refuses a host when the guest would leave a higher pressure on '
            'the nodes that it would use. 1 means as many runnable threads as the node has cores, '
            'where the second hardware thread of a core counts as a quarter: all CPUs of the node '
            'without SMT, 62 percent of them with SMT (1.6 then means all of them). 0 (default): '
            'no limit, because the demand of guests that have not been measured yet is only '
            'estimated, and a server for which no host is left ends in ERROR. The extra spec '
            'numa_pmc:max_pressure of a flavor overrides it. Neither applies to %s.' % _LEAVING
        ),
    ),
    cfg.BoolOpt(
        'require_one_node',
        default=False,
        mutable=True,
        help=(
            'NUMAPressureFilter refuses hosts where the guest does not fit on one node, by its '
            'vCPUs and memory. This does not apply to flavors with the extra spec '
            'numa_pmc:policy=spread, nor to %s. A flavor asks for the same with '
            'numa_pmc:policy=one_node, which applies to them too.' % _LEAVING
        ),
    ),
]


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [(GROUP, OPTIONS)]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; this may be called more than once."""
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)
