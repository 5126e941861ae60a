# SPDX-License-Identifier: Apache-2.0
"""Options of the agent: the group ``[agent]``.

Their types are those of oslo.config, because the libvirt hook reads none of these options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc.conf import counters as counters_conf, host_options
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.conf.counters import CounterOptions
    from nova_numa_pmc.conf.host_options import HostOptions

GROUP = cfg.OptGroup('agent', help='What nova-numa-agent does besides measuring.')
#: Values of the option ``rebalance``.
OFF, DRY_RUN, AUTO = 'off', 'dry-run', 'auto'
_REBALANCE_OPTIONS = plan_records.RebalanceOptions()


class AgentOptions(Record):
    """The group ``[agent]``, checked, and the other groups that the agent needs.

    :param host_options: the groups that the hook reads as well
    :param counter_options: the group ``[counters]``
    :param rebalance: :data:`OFF`, :data:`DRY_RUN` or :data:`AUTO`
    """

    host_options: HostOptions
    counter_options: CounterOptions = counters_conf.CounterOptions()
    rebalance: str = AUTO
    rebalance_options: plan_records.RebalanceOptions = _REBALANCE_OPTIONS


_DEFAULT = AgentOptions(None)  # type: ignore[arg-type]  # ``host_options`` is not read

#: The options of the group.
OPTIONS: Sequence[cfg.Opt] = [
    cfg.StrOpt(
        'rebalance',
        default=_DEFAULT.rebalance,
        choices=[
            (OFF, 'guests stay where they were placed'),
            (DRY_RUN, 'log which moves would pay, and why, but make none'),
            (AUTO, 'widen guests that wait, and move memory where that pays lastingly'),
        ],
        help='Whether running guests are moved when the load changes.',
    ),
    cfg.IntOpt(
        'moved_percent_per_day',
        default=round(100 * _REBALANCE_OPTIONS.moved_ratio_per_day),
        min=0,
        max=100000,
        help=(
            "Maximum share of the guests' memory that the agent moves per day [%], but at "
            'least what takes a minute at move_mib_per_s. 0: no memory is moved, and guests '
            'that wait are only widened.'
        ),
    ),
    cfg.IntOpt(
        'move_mib_per_s',
        default=int(_REBALANCE_OPTIONS.bytes_per_sec) >> 20,
        min=1,
        max=1 << 20,
        help='Maximum rate at which memory is moved [MiB/s].',
    ),
    cfg.BoolOpt(
        'widen',
        default=_REBALANCE_OPTIONS.widen,
        help=(
            "Let a guest also use another node's CPUs while its own node has too few CPUs "
            'for all its guests and the other node has CPUs to spare.'
        ),
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the groups ``[agent]`` and ``[counters]``."""
    counters_conf.register_opts(conf)
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)


def read(path: str = host_options.PATH) -> AgentOptions:
    """Read the operator's file; if there is none, options have their defaults.

    :raises OptionsError: the file cannot be read, or a value is invalid
    """
    with counters_conf.naming_file(path):
        conf, options = counters_conf.parse_file(path, register_opts), host_options.read(path)
        group = conf.agent
        rebalance_options = plan_records.RebalanceOptions(
            moved_ratio_per_day=group.moved_percent_per_day / 100,
            bytes_per_sec=group.move_mib_per_s << 20,
            reserve_bytes=options.placement_options.reserve_bytes,
            widen=group.widen,
        )
        return AgentOptions(
            host_options=options,
            counter_options=counters_conf.from_conf(conf.counters, options),
            rebalance=group.rebalance,
            rebalance_options=rebalance_options,
        )
