# SPDX-License-Identifier: Apache-2.0
"""Install and remove the libvirt hook, for ``hook install`` and ``hook remove``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from nova_numa_pmc.checks import hook as hook_checks
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.finding import ERROR, Finding
from nova_numa_pmc.host import confinement, hook_files, ownership
from nova_numa_pmc.record import Record

#: Packages from which the hook imports modules; checked by tests/unit/test_imports.py.
_PACKAGES_OF_HOOK = ('', 'conf', 'core', 'core/placement', 'host', 'host/page_moves', 'state')


class InstallResult(Record):
    """Result of an installation or a removal.

    :param changes: one line for each change to a file
    :param notes: what else was done or noticed, or remains to be done
    :param findings: why nothing was installed; empty on success
    """

    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def install(root: str, reload: bool = False, force: bool = False) -> InstallResult:
    """Check that the daemon can run the script, then install it.

    :param reload: whether to make the running daemon look for hooks again
    :param force: install in spite of findings, unless the trial failed
    :raises hook_files.HookError: this process is not root, or the script was not found
    """
    _require_root(root)
    expected = hook_checks.expected_script(root)
    notes: list[str] = []
    daemon = confinement.find_daemon(root)
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
    return InstallResult(tuple(changes) or ('nothing to change',), tuple(notes))


def remove(root: str) -> InstallResult:
    """Remove the hook; a running daemon need not be restarted.

    :raises hook_files.HookError: this process is not root
    """
    _require_root(root)
    changes = tuple(hook_files.remove(root))
    if changes and hook_checks.is_own_root(root):
        with contextlib.suppress(StateError):
            hook_checks.record_knows_hook(root, None)
    return InstallResult(changes or ('nothing to remove',))


def _compile(site: str) -> list[str]:
    """Byte-compile the modules that the hook imports, with the interpreter that will run it.

    :returns: a note if that failed
    """
    completed = subprocess.run(
        [
            hook_files.INTERPRETER,
            '-I',
            '-m',
            'compileall',
            '-q',
            '-l',
            *(os.path.join(site, 'nova_numa_pmc', package) for package in _PACKAGES_OF_HOOK),
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
    root: str, daemon: confinement.Daemon | None, wanted: bool, knew_hook: bool
) -> list[str]:
    """Make the daemon look for hooks if this is wanted; return notes about whether it has.

    :param knew_hook: whether it has already found the hook's earlier version
    """
    if daemon is None:
        if confinement.is_installed(root):
            return ['no libvirt daemon was found running: it looks for hooks when it is started']
        return ['no libvirt daemon was found on this host: there is none to run the hook']
    if wanted:
        try:
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
