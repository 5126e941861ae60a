# SPDX-License-Identifier: Apache-2.0
"""Check the libvirt hook: turn the report of ``hook status`` into findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import finding
from nova_numa_pmc.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Findings not listed are errors: guests are not placed, or libvirt's next restart is at risk.
_SEVERITIES = {
    'hook-not-tried': finding.NOTE,
    'hook-outdated': finding.WARNING,
    'promises-unreadable': finding.WARNING,
    'hook-in-container': finding.WARNING,
}


#: Not reported for a container's root: the package lies elsewhere there, and
#: :mod:`deployment` reports a missing hook.
_NOT_IN_CONTAINERS = ('hook-outdated', 'hook-not-installed')


def check_status(report: dict[str, Any], in_container: bool = False) -> Iterator[Finding]:
    """Turn the report of ``nova-numa-rebalance hook status`` into findings.

    :param report: as :func:`nova_numa_pmc.cli.hook_report.status` returns it
    :param in_container: the report is about the root of libvirt's container
    """
    path = report['installed']['path']
    for problem in report['problems']:
        if in_container and problem['code'] in _NOT_IN_CONTAINERS:
            continue
        yield Finding(
            problem['code'],
            _SEVERITIES.get(problem['code'], finding.ERROR),
            problem['problem'],
            problem['remedy'],
            path,
        )
