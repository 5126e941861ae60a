# SPDX-License-Identifier: Apache-2.0
"""Is the libvirt hook in place and in use: what ``hook status`` found, as findings."""

from nova_numa_pmc.checks import finding
from nova_numa_pmc.checks.finding import Finding

#: All others are errors: guests are not placed, or the daemon's next restart is in danger.
_SEVERITIES = {
    'hook-not-tried': finding.NOTE, 'hook-outdated': finding.WARNING,
    'promises-unreadable': finding.WARNING, 'hook-in-container': finding.WARNING}


def check_status(report):
    """Turn the report of ``nova-numa-rebalance hook status`` into findings.

    :param report: dict, as :func:`nova_numa_pmc.cmd.hook.status` returns it
    """
    path = report['installed']['path']
    for problem in report['problems']:
        yield Finding(problem['code'], _SEVERITIES.get(problem['code'], finding.ERROR),
                      problem['problem'], problem['remedy'], path)
