# SPDX-License-Identifier: Apache-2.0
"""Describe every option of nova-numa-pmc.conf to oslo.config.

The options that the libvirt hook reads are in :mod:`nova_numa_pmc.conf.host_options`, which is
cheap to import; the others are in the modules of their groups. The options that Nova's services
read from nova.conf are in ``conf/compute.py`` and ``conf/scheduler.py``. No option is registered
at import.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from nova_numa_pmc.conf import agent as agent_conf, counters as counters_conf, host_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_KINDS: dict[type, Callable[..., cfg.Opt]] = {
    bool: cfg.BoolOpt,
    int: cfg.IntOpt,
    float: cfg.FloatOpt,
    str: cfg.StrOpt,
    host_options.NodeList: functools.partial(cfg.StrOpt, regex=host_options.NodeList.REGEX),
}


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [
        (
            cfg.OptGroup(group, help=text),
            [_opt(option) for option in host_options.OPTIONS if option.group == group],
        )
        for group, text in host_options.GROUPS
    ] + [(module.GROUP, module.OPTIONS) for module in (counters_conf, agent_conf)]


def _opt(option: host_options.Option) -> cfg.Opt:
    bounds: dict[str, Any] = {}
    if option.minimum is not None:
        bounds = {'min': option.minimum, 'max': option.maximum}
    return _KINDS[option.kind](option.name, default=option.default, help=option.help, **bounds)
