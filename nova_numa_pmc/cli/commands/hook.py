# SPDX-License-Identifier: Apache-2.0
"""Install, remove or check the libvirt hook that places guests at their start.

install   put the script into /etc/libvirt/hooks/qemu.d/; first run it as the daemon
          would, under the daemon's AppArmor or SELinux label, and refuse to install
          if that fails
remove    remove the script
status    report whether the hook works, and if not, why and what to do

examples:
  nova-numa-rebalance hook install --reload
  nova-numa-rebalance hook status --json
  nova-numa-rebalance hook remove
  nova-numa-rebalance hook install --root /mnt/image

exit codes: 0 done, nothing wrong; 1 refused, failed, or status found a problem;
64 usage error
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from nova_numa_pmc.checks import hook as hook_checks
from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.core.finding import ERROR, Finding
from nova_numa_pmc.host import hook_files, ownership, services
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import argparse
    from typing import Any


class InstallResult(Record):
    """Result of an installation or a removal.

    :param changes: one line for each change to a file
    :param notes: what else was done or noticed, or remains to be done
    :param findings: why nothing was installed; empty on success
    """

    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


OPTIONS = (
    arguments.option('action', choices=('install', 'remove', 'status'), help='what to do'),
    arguments.option(
        '--reload',
        action='store_true',
        help='with install: make the running daemon look for hooks again (systemctl reload)',
    ),
    arguments.option(
        '--force',
        action='store_true',
        help='with install: install even if the trial could not be run, if the daemon runs in a '
        "container, or if users other than root can write to the package's directory",
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Run install, remove or status, print its result, and return the exit code."""
    result: hook_checks.HookStatus | InstallResult
    if args.action != 'install' and (args.reload or args.force):
        args.parser.error('--reload and --force need install')
    if args.action == 'status':
        result = hook_checks.read_status(args.root)
        data, lines = to_data(result), _status_lines(result)
    else:
        if args.action == 'remove':
            result = remove(args.root)
        else:
            result = install(args.root, args.reload, args.force)
        data = dict(result._asdict(), changed=bool(result.changes))
        lines = [*(result.changes or ['nothing changed']), *result.notes]
    data['findings'] = [finding._asdict() for finding in result.findings]
    texts = [*map(printable, lines), *tables.finding_lines(result.findings)]
    tables.show(args.json, data, texts)
    return arguments.PROBLEM if result.findings else arguments.OK


def to_data(status: hook_checks.HookStatus) -> dict[str, Any]:
    """Return the state of the hook as plain data, without the findings."""
    daemon = status.daemon
    return {
        'installed': status.installed._asdict(),
        'daemon': daemon and {'name': daemon.name, 'pid': daemon.pid, 'label': daemon.label},
        'trial': status.trial and status.trial._asdict(),
    }


def _status_lines(status: hook_checks.HookStatus) -> list[str]:
    state = 'installed' if status.installed.present else 'not installed'
    lines = ['hook: %s (%s)' % (state, status.installed.path)]
    if status.daemon:
        daemon = status.daemon
        lines.append('daemon: %s, pid %d, label %s' % (daemon.name, daemon.pid, daemon.label))
    if status.trial:
        lines.append('trial: %s' % status.trial.message)
    return lines


def install(root: str, reload: bool = False, force: bool = False) -> InstallResult:
    """Check that the daemon can run the script, then install it.

    :param reload: whether to make the running daemon look for hooks again
    :param force: install in spite of findings, unless the trial failed
    :raises hook_files.HookError: this process is not root, or the script was not found
    """
    _require_root(root)
    expected = hook_checks.expected_script(root)
    notes: list[str] = []
    daemon = services.find_daemon(root)
    findings = list(hook_checks.check_root(daemon))
    exposed = hook_files.find_writable_by_others(
        hook_files.package_site(), ownership.root_uid(root)
    )
    if exposed:
        findings.append(
            Finding(
                'hook-exposed',
                ERROR,
                '%s can be changed by users other than root, and the hook runs from it as root'
                % exposed,
                'chown it to root and chmod go-w, or install with --force',
            )
        )
    if hook_checks.is_own_root(root):
        probe = hook_files.put_probe(root, expected)
        try:
            _relabel()
            trial = hook_checks.try_as_daemon(root, daemon, probe)
        finally:
            os.unlink(probe)
        notes.append('trial under %s: %s' % (trial.label, trial.message))
        findings += hook_checks.check_trial(trial)
        if trial.ok is False:
            return InstallResult(notes=tuple(notes), findings=tuple(findings))
    else:
        notes.append("not tried under the daemon's confinement: --root names another system")
    if findings and not force:
        return InstallResult(notes=tuple(notes), findings=tuple(findings))
    changes = hook_files.install(root, expected)
    if hook_checks.is_own_root(root):
        notes += _relabel()
        notes.append(reload_daemon(root, daemon, reload))
    return InstallResult(tuple(changes), tuple(notes))


def remove(root: str) -> InstallResult:
    """Remove the hook; a running daemon need not be restarted.

    :raises hook_files.HookError: this process is not root
    """
    _require_root(root)
    return InstallResult(tuple(hook_files.remove(root)))


def _relabel() -> list[str]:
    """Restore the SELinux labels of the hook directory; return a note if there is SELinux."""
    if not (os.path.exists('/sys/fs/selinux/enforce') and os.path.exists('/sbin/restorecon')):
        return []
    subprocess.run(['/sbin/restorecon', '-R', '/etc/libvirt/hooks'], check=False)
    return ['restored the SELinux labels of /etc/libvirt/hooks']


def reload_daemon(root: str, daemon: services.Process | None, wanted: bool) -> str:
    """Make the daemon look for hooks if this is wanted; return a note about whether it has."""
    if daemon is None:
        refusal = services.why_not_believed(root)
        if refusal:
            return '%s; it is not made to look for hooks: %s' % (refusal, services.REFUSAL_REMEDY)
        return 'no libvirt daemon was found running: one looks for hooks when it is started'
    if daemon.unit == services.CONTAINER:
        return '%s runs in a container: restart it to make it look for hooks' % daemon.name
    if not wanted:
        return (
            '%s is running: "nova-numa-rebalance hook install --reload" makes it look for hooks '
            'if it has not yet' % daemon.name
        )
    error = services.reload(daemon)
    if error:
        return '%s was not reloaded: %s; one looks for hooks when it is started' % (
            daemon.unit,
            error,
        )
    return 'reloaded %s (pid %d) to look for hooks again' % (daemon.unit, daemon.pid)


def _require_root(root: str) -> None:
    # CommandContext.require_root() cannot be used: its module imports what a bare wheel lacks.
    if hook_checks.is_own_root(root) and os.geteuid() != 0:
        raise hook_files.HookError('only root can change /etc/libvirt/hooks: run with sudo')
