# SPDX-License-Identifier: Apache-2.0
"""Describe every option of nova-numa-pmc.conf to oslo.config.

The options that the libvirt hook reads are in :mod:`nova_numa_pmc.conf.host_options`, which is
cheap to import; the others are in the modules of their groups. The options that Nova's services
read from nova.conf are in ``conf/compute.py`` and ``conf/scheduler.py``. No option is registered
at import.
"""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from nova_numa_pmc.conf import agent as agent_conf, counters as counters_conf, host_options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

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


def find_unknown(
    path: str, known: Collection[tuple[str, str]], shared: bool = False
) -> Iterator[str]:
    """Say what a file sets that is no option: misspelt names, options in the wrong group.

    oslo.config and the hook ignore these. A file that cannot be parsed has none.

    :param known: (group, name) of each option
    :param shared: whether the file has groups of other programs; only those that resemble the
        known ones are then looked at
    """
    texts = sorted('[%s] %s' % pair for pair in known)
    groups = {group for group, _ in known}
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError):
        return
    for section, values in sections.items():
        group = section if section == 'DEFAULT' else section.lower()
        if shared and not difflib.get_close_matches(group, groups, cutoff=0.8):
            continue
        for name in values:
            if (group, name) in known:
                continue
            text = '[%s] %s' % (section, name)
            meant = [other for other in texts if other.endswith('] ' + name)]
            meant = meant or difflib.get_close_matches(text, texts, 1)
            yield 'there is no option %s, so it has no effect%s' % (
                text,
                ': did you mean %s?' % meant[0] if meant else '',
            )
