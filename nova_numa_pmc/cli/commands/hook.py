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

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.checks import hook as hook_checks
from nova_numa_pmc.cli import arguments
from nova_numa_pmc.core.finding import ERROR, Finding
from nova_numa_pmc.exceptions import StateError
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
    result: hook_checks.HookStatus | InstallResult
    if args.action == 'status':
        result = hook_checks.read_status(args.root)
    elif args.action == 'remove':
        result = remove(args.root)
    else:
        result = install(args.root, args.reload, args.force)
    if args.json:
        print(json.dumps(to_data(result), indent=2, sort_keys=True))
    else:
        _print(result)
    return arguments.PROBLEM if result.findings else arguments.OK


def to_data(result: hook_checks.HookStatus | InstallResult) -> dict[str, Any]:
    """Return the result of install, remove or status as plain data."""
    data: dict[str, Any] = {
        'changes': [],
        'notes': [],
        'problems': [
            {'code': finding.code, 'problem': finding.message, 'remedy': finding.remedy}
            for finding in result.findings
        ],
    }
    if isinstance(result, InstallResult):
        changes = result.changes
        return dict(data, changed=bool(changes), changes=changes, notes=result.notes)
    return dict(
        data,
        installed=result.installed._asdict(),
        daemon=result.daemon and result.daemon._asdict(),
        trial=result.trial and result.trial._asdict(),
    )


def _print(result: hook_checks.HookStatus | InstallResult) -> None:
    if isinstance(result, InstallResult):
        nothing = () if result.findings else ('nothing to change',)
        lines = [*(result.changes or nothing), *result.notes]
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
    site = hook_files.package_site()
    exposed = hook_files.find_writable_by_others(site, ownership.root_uid(root))
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
        notes += _compile(site)
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
    # A daemon that has found a hook does not have to look for its new version.
    knew_hook = daemon is not None and hook_checks.knows_hook(
        root, hook_files.inspect(root, expected), daemon
    )
    changes = hook_files.install(root, expected)
    if hook_checks.is_own_root(root):
        notes += _relabel()
        notes += reload_daemon(root, daemon, reload, knew_hook)
    return InstallResult(tuple(changes), tuple(notes))


def remove(root: str) -> InstallResult:
    """Remove the hook; a running daemon need not be restarted.

    :raises hook_files.HookError: this process is not root
    """
    _require_root(root)
    changes = tuple(hook_files.remove(root))
    if changes and hook_checks.is_own_root(root):
        with contextlib.suppress(StateError):
            hook_checks.record_knows_hook(root, None)
    return InstallResult(changes)


def _compile(site: str) -> list[str]:
    """Byte-compile the package with the interpreter that will run the hook.

    :returns: a note if that failed
    """
    completed = subprocess.run(
        [
            hook_files.INTERPRETER,
            '-I',
            '-m',
            'compileall',
            '-q',
            os.path.join(site, 'nova_numa_pmc'),
        ],
        capture_output=True,
    )
    if completed.returncode:
        words = (completed.stdout or completed.stderr).decode(errors='replace').split()
        return [
            'could not byte-compile the package, so each start of a guest takes longer: %s'
            % ' '.join(words)[-200:]
        ]
    return []


def _relabel() -> list[str]:
    """Restore the SELinux labels of the hook directory; return a note if there is SELinux."""
    if not (os.path.exists('/sys/fs/selinux/enforce') and os.path.exists('/sbin/restorecon')):
        return []
    subprocess.run(['/sbin/restorecon', '-R', '/etc/libvirt/hooks'], check=False)
    return ['restored the SELinux labels of /etc/libvirt/hooks']


def reload_daemon(
    root: str, daemon: services.Daemon | None, wanted: bool, knew_hook: bool
) -> list[str]:
    """Make the daemon look for hooks if this is wanted; return notes about whether it has.

    :param knew_hook: whether it has already found the hook's earlier version
    """
    if daemon is None:
        refusal = services.why_not_believed(root)
        if refusal:
            return [
                '%s; it is not made to look for hooks: %s' % (refusal, services.REFUSAL_REMEDY)
            ]
        return ['no libvirt daemon was found running: one looks for hooks when it is started']
    if wanted:
        try:
            # The trial may have taken a minute, and the id may be another process's by now.
            if services.find_daemon(root) != daemon:
                raise ProcessLookupError
            os.kill(daemon.pid, signal.SIGHUP)
        except ProcessLookupError:
            return ['%s has just ended: it looks for hooks when it is started' % daemon.name]
    elif not knew_hook:
        return [
            '%s is running: "nova-numa-rebalance hook install --reload" makes it look for hooks '
            'again' % daemon.name
        ]
    try:
        hook_checks.record_knows_hook(root, daemon)
    except StateError as error:
        return ['%s knows the hook, but this cannot be recorded: %s' % (daemon.name, error)]
    if not wanted:
        return []
    return ['signalled %s (pid %d) to look for hooks again' % (daemon.name, daemon.pid)]


def _require_root(root: str) -> None:
    # CommandContext.require_root() cannot be used: its module imports what a bare wheel lacks.
    if hook_checks.is_own_root(root) and os.geteuid() != 0:
        raise hook_files.HookError('only root can change /etc/libvirt/hooks: run with sudo')
