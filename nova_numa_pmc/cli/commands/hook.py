# SPDX-License-Identifier: Apache-2.0
"""Install, remove or check the libvirt hook that places guests at their start.

install   put the script into /etc/libvirt/hooks/qemu.d/; first run it as the daemon
          would, under the daemon's AppArmor or SELinux label, and refuse to install
          if that fails
remove    remove the script
status    report whether guests are placed, and if not, why and what to do

examples:
  nova-numa-rebalance hook install --reload
  nova-numa-rebalance hook status --json
  nova-numa-rebalance hook remove
  nova-numa-rebalance hook install --root /mnt/image

exit codes: 0 done, nothing wrong; 1 refused, failed, or status found a problem;
64 usage error
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.checks import hook as hook_checks
from nova_numa_pmc.cli import arguments, exits, hook_install
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.state import promises_format

if TYPE_CHECKING:
    import argparse
    from typing import Any


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hook``."""
    actions = parser.add_subparsers(dest='action', metavar='install|remove|status', required=True)
    for action, summary in (
        ('install', 'install the hook'),
        ('remove', 'remove the hook'),
        ('status', 'report what is installed and what is wrong'),
    ):
        subparser = actions.add_parser(action, help=summary)
        arguments.add_common(subparser, root_help='work on')
        if action == 'install':
            subparser.add_argument(
                '--reload',
                action='store_true',
                help='make the running daemon look for hooks again (SIGHUP)',
            )
            subparser.add_argument(
                '--force',
                action='store_true',
                help='install even if the trial could not be run, if the daemon runs in a '
                "container, or if users other than root can write to the package's directory",
            )


def run(args: argparse.Namespace) -> int:
    """Run install, remove or status, print its result, and return the exit code."""
    result: hook_checks.HookStatus | hook_install.InstallResult
    if args.action == 'status':
        result = hook_checks.read_status(args.root)
    elif args.action == 'remove':
        result = hook_install.remove(args.root)
    else:
        result = hook_install.install(args.root, args.reload, args.force)
    if args.json:
        print(json.dumps(to_data(result), indent=2, sort_keys=True))
    else:
        _print(result)
    return exits.PROBLEM if result.findings else exits.OK


def to_data(result: hook_checks.HookStatus | hook_install.InstallResult) -> dict[str, Any]:
    """Return the result of install, remove or status as plain data."""
    data: dict[str, Any] = {
        'changes': [],
        'notes': [],
        'problems': [
            {'code': finding.code, 'problem': finding.message, 'remedy': finding.remedy}
            for finding in result.findings
        ],
    }
    if isinstance(result, hook_install.InstallResult):
        return dict(data, changes=result.changes, notes=result.notes)
    return dict(
        data,
        installed=result.installed._asdict(),
        daemon=result.daemon and result.daemon._asdict(),
        trial=result.trial and result.trial._asdict(),
        decisions=[promises_format.to_data(promise) for promise in result.promises],
    )


def _print(result: hook_checks.HookStatus | hook_install.InstallResult) -> None:
    if isinstance(result, hook_install.InstallResult):
        lines = [*result.changes, *result.notes]
    else:
        lines = _status_lines(result)
    for line in lines:
        print(printable(line))
    for finding in result.findings:
        print('problem: ' + printable(finding.message), file=sys.stderr)
        print('  remedy: ' + printable(finding.remedy), file=sys.stderr)


def _status_lines(status: hook_checks.HookStatus) -> list[str]:
    installed = status.installed
    state = 'installed' if installed.present else 'not installed'
    lines = ['hook: %s (%s)' % (state, installed.path)]
    if status.daemon:
        lines.append(
            'daemon: %s, pid %d, label %s'
            % (status.daemon.name, status.daemon.pid, status.daemon.label)
        )
    if status.trial:
        lines.append('trial: %s' % status.trial.message)
    return lines + [
        'guest %s: CPUs on %s, memory on %s, %s'
        % (
            promise.name,
            name_nodes(promise.cpu_nodes),
            name_nodes(promise.mem_nodes),
            promise.origin_text,
        )
        for promise in status.promises
    ]
