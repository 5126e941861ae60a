# SPDX-License-Identifier: Apache-2.0
"""Check the libvirt hook: what is installed, and whether it works.

kolla and openstack-helm run libvirt and nova-compute in containers that share the host's pid and
cgroup namespaces. Each container has a file system of its own, which contains the hook, the
package and Nova's configuration.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core.finding import ERROR, NOTE, WARNING, Finding
from nova_numa_pmc.host import files, hook_files, services
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator


_INSTALL = 'nova-numa-rebalance hook install --reload'
#: Codes that are not reported for a container's root: the package is elsewhere in a container,
#: and :func:`check_libvirt` reports a missing hook.
_NOT_IN_CONTAINERS = ('hook-outdated', 'hook-not-installed')


class HookStatus(Record):
    """The hook as it is installed on a host.

    :param installed: the installed files
    :param daemon: the daemon that runs the hook; None: no daemon is running
    :param trial: a trial of the installed script; None: there was none, as it needs root
        privileges and this host's own files
    :param findings: findings, with the script as their file
    """

    installed: hook_files.InstalledFiles
    daemon: services.Process | None
    trial: services.LabelTrial | None
    findings: tuple[Finding, ...]


def check_hook(root: str) -> Iterator[Finding]:
    """Check the hook where the daemon looks for it, which may be inside a container."""
    daemon = services.find_daemon(root)
    in_container = daemon is not None and not daemon.same_root
    if daemon is not None and in_container:
        root = os.path.join(root, 'proc/%d/root' % daemon.pid)
    for finding in read_status(root).findings:
        if not (in_container and finding.code in _NOT_IN_CONTAINERS):
            yield finding


def read_status(root: str) -> HookStatus:
    """Return whether the hook works, and what is wrong."""
    installed = hook_files.inspect(root, expected_script(root))
    daemon = services.find_daemon(root)
    findings: list[Finding] = []
    trial = None
    refusal = '' if daemon else services.why_not_believed(root)
    if refusal:
        findings.append(Finding('libvirt-not-believed', WARNING, refusal, services.REFUSAL_REMEDY))
    elsewhere = tuple(check_root(daemon))
    findings += elsewhere or _check_files(installed)
    if installed.executable and not elsewhere:
        if is_own_root(root) and os.geteuid() == 0:
            trial = try_as_daemon(root, daemon, installed.path)
            findings += check_trial(trial)
        findings += _check_daemon(installed, daemon)
    return HookStatus(
        installed,
        daemon,
        trial,
        tuple(finding._replace(file=installed.path) for finding in findings),
    )


def _check_files(installed: hook_files.InstalledFiles) -> Iterator[Finding]:
    if not installed.present:
        yield Finding('hook-not-installed', ERROR, 'the hook is not installed', _INSTALL)
    elif not installed.executable:
        yield Finding(
            'hook-not-executable',
            ERROR,
            '%s is not executable: libvirt skips it' % installed.path,
            _INSTALL,
        )
    elif not installed.current:
        yield Finding(
            'hook-outdated',
            WARNING,
            '%s is not the script that this version of the package installs' % installed.path,
            _INSTALL,
        )


def check_root(daemon: services.Process | None) -> Iterator[Finding]:
    """Check that the daemon sees the files of the root where the hook is installed."""
    if daemon is not None and not daemon.same_root:
        yield Finding(
            'hook-in-container',
            WARNING,
            '%s (pid %d) runs with a different file system root, in a container, and does not '
            'run a hook that is installed here' % (daemon.name, daemon.pid),
            'install the package and the hook in its image',
        )


def _check_daemon(
    installed: hook_files.InstalledFiles, daemon: services.Process | None
) -> Iterator[Finding]:
    """Check that a daemon has looked for hooks since the hook was installed.

    It does so when it starts and at SIGHUP, which ``systemctl reload`` sends
    (``virHookInitialize`` in libvirt's src/util/virhook.c).
    """
    if daemon is None or daemon.start_ns is None:
        return
    installed_ns = files.changed_ns(installed.path)
    if daemon.start_ns >= installed_ns:
        return
    reloaded_ns = services.reloaded_ns(daemon)
    if reloaded_ns is None or reloaded_ns < installed_ns:
        is_unknown = reloaded_ns is None
        yield Finding(
            'hook-not-seen',
            WARNING if is_unknown else ERROR,
            '%s (pid %d) has been running since before the hook was installed%s, and a daemon '
            'that started without any qemu hook runs none until it is reloaded'
            % (
                daemon.name,
                daemon.pid,
                '; whether it was reloaded since is not known' if is_unknown else '',
            ),
            'restart its container, unless it was sent SIGHUP since'
            if daemon.unit == services.CONTAINER
            else _INSTALL,
        )


def check_trial(trial: services.LabelTrial) -> Iterator[Finding]:
    """Check that a trial has shown that the daemon can run the hook."""
    if trial.ok is None:
        yield Finding(
            'hook-not-tried',
            NOTE,
            'the hook could not be tried: %s' % trial.message,
            'start the daemon and install as root; SELinux: load the module in '
            'share/nova-numa-pmc/selinux first; or install with --force',
        )
    elif not trial.ok and (
        trial.label == services.UNCONFINED
        or (
            trial.message.startswith('selftest: failed')
            # Root is refused access only if it is confined.
            and not any(os.strerror(code) in trial.message for code in (errno.EACCES, errno.EPERM))
        )
    ):
        yield Finding(
            'hook-fails',
            ERROR,
            'the hook itself fails: %s' % trial.message,
            'correct what the message names; then install again',
        )
    elif not trial.ok:
        yield Finding(
            'hook-confined',
            ERROR,
            "the daemon's confinement (%s) does not let the hook run: %s"
            % (trial.label, trial.message),
            'AppArmor: allow it in /etc/apparmor.d/local/usr.sbin.%s; SELinux: load the '
            'module in share/nova-numa-pmc/selinux; then install again'
            % ('virtqemud' if 'virtqemud' in (trial.label or '') else 'libvirtd'),
        )


def try_as_daemon(root: str, daemon: services.Process | None, script: str) -> services.LabelTrial:
    """Run a script as the daemon would, under its label."""
    label = services.label_of_daemon(root, daemon)
    if label is None:
        return services.LabelTrial(
            None, None, "the daemon's label is unknown while it is not running"
        )
    return services.try_script(script, label)


def expected_script(root: str) -> bytes:
    """Return our script, whose alarm comes 1 to 2 s after the hook's own time limit."""
    return hook_files.render(int(host_options.read_under_root(root).timeout_s + 1.999))


def is_own_root(root: str) -> bool:
    """Return whether a root is that of this process, and not that of another system."""
    return os.path.samefile(root, '/')


def check_libvirt(root: str) -> Iterator[Finding]:
    """Check which daemon runs the hook, and whether it runs in a container."""
    daemon = services.find_daemon(root)
    if daemon is None:
        if not services.why_not_believed(root):  # else the hook's status has the finding
            yield Finding(
                'libvirt-not-running',
                NOTE,
                'neither virtqemud nor libvirtd is running; a modular daemon exits after 120 s '
                'without work and is started again on demand',
                'run virsh list, then repeat this check',
            )
        return
    if not daemon.same_root:
        inside = os.path.join(root, 'proc/%d/root' % daemon.pid)
        hook = os.path.join(inside, files.HOOKS, files.OUR_HOOK)
        if not os.path.exists(hook):
            yield Finding(
                'hook-not-in-container',
                ERROR,
                '%s (pid %d) runs in a container, and the hook is not installed there'
                % (daemon.name, daemon.pid),
                'install the package in its image, run "nova-numa-rebalance hook install" in '
                'it, and share /run/nova-numa-pmc with the host',
                hook,
            )
