# SPDX-License-Identifier: Apache-2.0
"""Find options in our groups of configuration files that do not exist.

oslo.config and the hook ignore them silently: a misspelt option, or one that an earlier version
had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc import finding
from nova_numa_pmc.conf import compute as compute_conf, opts, scheduler as scheduler_conf
from nova_numa_pmc.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def check_own(path: str) -> Iterator[Finding]:
    """Check our own configuration file."""
    return _check([path], opts.list_opts())


def check_novas(paths: Iterable[str]) -> Iterator[Finding]:
    """Check the group ``[numa_pmc]`` of Nova's configuration files."""
    group = scheduler_conf.GROUP
    return _check(paths, [(group, [*scheduler_conf.OPTIONS, *compute_conf.OPTIONS])])


def _check(
    paths: Iterable[str], groups: Sequence[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]
) -> Iterator[Finding]:
    for path in paths:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (OSError, cfg.ParseError, ValueError):
            continue  # there is none, or another check reports what is wrong with it
        for group, options in groups:
            known = {option.name for option in options}
            for name in sections.get(group.name, {}):
                if name not in known:
                    yield Finding(
                        'option-unknown',
                        finding.WARNING,
                        'there is no option [%s] %s: it has no effect' % (group.name, name),
                        'correct its name, or remove it',
                        path,
                    )
