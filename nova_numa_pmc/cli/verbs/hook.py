# SPDX-License-Identifier: Apache-2.0
"""Install, remove or check the libvirt hook that places guests at their start.

install   put the script into /etc/libvirt/hooks/qemu.d/ (libvirt 6.5.0 and later),
          or behind a dispatcher at hooks/qemu that keeps an existing hook working;
          first run the script as the daemon would, under the daemon's AppArmor or
          SELinux label, and refuse to install if that fails
remove    remove the script and restore the hook that was there before, unchanged
status    report whether guests are placed, and if not, why and what to do

examples:
  nova-numa-rebalance hook install --reload
  nova-numa-rebalance hook status --json
  nova-numa-rebalance hook remove
  nova-numa-rebalance hook install --root /mnt/image --libvirt-version 9.0.0

exit codes: 0 done, nothing wrong; 1 refused, failed, or status found a problem;
64 usage error
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import exits, hook_report, options
from nova_numa_pmc.cpulist import name_nodes

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``hook``."""
    verbs = parser.add_subparsers(dest='verb', metavar='install|remove|status', required=True)
    for verb, summary in (
        ('install', 'install the hook'),
        ('remove', 'remove the hook and restore the one that it replaced'),
        ('status', 'report what is installed and what is wrong'),
    ):
        sub = verbs.add_parser(verb, help=summary)
        options.add_common(sub, root_help='work on')
        if verb != 'remove':
            sub.add_argument(
                '--libvirt-version',
                metavar='X.Y.Z',
                type=hook_report.parse_version,
                help='assume this version instead of asking the installed libvirt',
            )
        if verb == 'install':
            sub.add_argument(
                '--reload',
                action='store_true',
                help='make the running daemon look for hooks again (SIGHUP)',
            )
            sub.add_argument(
                '--force',
                action='store_true',
                help='install even if the trial could not be run or users other than root can '
                "write to the package's directory",
            )


def run(args: argparse.Namespace) -> int:
    """Run one verb; print what it did; return the exit code."""
    if args.verb == 'status':
        report = hook_report.status(args.root, args.libvirt_version)
    elif args.verb == 'remove':
        report = hook_report.remove(args.root)
    else:
        report = hook_report.install(args.root, args.libvirt_version, args.reload, args.force)
    if args.json:
        print(json.dumps(report, indent=2, sort_keys=True))
    else:
        _print(report)
    return exits.PROBLEM if report['problems'] else exits.OK


def _print(report: hook_report.Report) -> None:
    installed = report.get('installed')
    if installed:
        state_of_it = 'installed' if installed['present'] else 'not installed'
        print('hook: %s (%s)' % (state_of_it, installed['path']))
        if installed['chained']:
            print('runs before it: %s' % installed['chained'])
    if report.get('daemon'):
        print('daemon: %(name)s, pid %(pid)d, label %(label)s' % report['daemon'])
    if report.get('trial'):
        print('trial: %s' % report['trial']['message'])
    for decision in report.get('decisions', ()):
        print(
            'guest %s: CPUs on %s, memory on %s, %s'
            % (
                decision['name'],
                name_nodes(decision['cpu_nodes']),
                name_nodes(decision['mem_nodes']),
                decision['origin'],
            )
        )
    for line in report['changes'] + report['notes']:
        print(line)
    for problem in report['problems']:
        print('problem: %(problem)s\n  remedy: %(remedy)s' % problem, file=sys.stderr)
