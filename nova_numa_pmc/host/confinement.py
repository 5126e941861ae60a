# SPDX-License-Identifier: Apache-2.0
"""Find the daemon that runs the hook, and try a script under its confinement.

If the daemon is not allowed to execute a hook, every running guest is killed when the daemon
restarts. A script is therefore tried first, under the daemon's own label. Debian's AppArmor
profile for libvirtd allows it to run ``/etc/libvirt/hooks/**`` under that same profile (``rmix``)
and ``/usr/bin/*`` unconfined (``PUx``), but nothing in a virtual environment or in /opt. The hook
therefore runs /usr/bin/python3, which, being unconfined, can read the package anywhere.
"""

from __future__ import annotations

import os
import subprocess

from nova_numa_pmc.host import files, services
from nova_numa_pmc.record import Record

#: Daemons that run qemu hooks, the modular one first.
DAEMONS = ('virtqemud', 'libvirtd')
#: AppArmor profiles that the daemons run under; used if none is running.
_PROFILES = ('virtqemud', 'libvirtd', '/usr/sbin/virtqemud', '/usr/sbin/libvirtd')

UNCONFINED = 'unconfined'


class Daemon(Record):
    """A running libvirt daemon.

    :param start_ns: CLOCK_BOOTTIME at which it was started, or None if not reported
    :param label: AppArmor profile or SELinux context, or 'unconfined' if there is none
    :param same_root: whether it sees the host's own root directory (False in a container)
    """

    name: str
    pid: int
    start_ns: int | None
    label: str
    same_root: bool


class LabelTrial(Record):
    """Result of running a script under ``label``; ``ok`` is None if it could not be tried."""

    ok: bool | None
    label: str | None
    message: str


def find_daemon(root: str = '/') -> Daemon | None:
    """Return the daemon that runs on the host at ``root``, or None if none does."""
    for name in DAEMONS:
        process = services.find(root, name)
        if process is not None:
            label = _label(root, process.pid)
            start_ns = files.process_start_ns(process.pid, root)
            return Daemon(name, process.pid, start_ns, label, process.same_root)
    return None


def is_installed(root: str) -> bool:
    """Return whether a daemon is installed on the host at ``root``, running or not."""
    return any(
        os.path.exists(os.path.join(root, directory, name))
        for directory in ('usr/sbin', 'usr/bin')
        for name in DAEMONS
    )


def label_of_daemon(root: str = '/', daemon: Daemon | None = None) -> str | None:
    """Return the label to try a hook under, or None if it cannot be determined.

    If no daemon is running, this is the AppArmor profile that is loaded for it, or 'unconfined'
    if none is. It cannot be determined on a host with SELinux.
    """
    if daemon is not None:
        return daemon.label
    if os.path.exists(os.path.join(root, 'sys/fs/selinux/enforce')):
        return None  # a policy transition sets the context when the daemon starts
    profiles = files.read_optional(root, 'sys/kernel/security/apparmor/profiles') or ''
    loaded = {line.rsplit(' (', 1)[0] for line in profiles.splitlines()}
    return next((name for name in _PROFILES if name in loaded), UNCONFINED)


def try_script(script: str, label: str, timeout_s: float = 60) -> LabelTrial:
    """Run ``script - selftest`` as a daemon with ``label`` would, and return the result.

    A shell changes to the label first and executes the script from there. If it changed by
    executing the script itself, the check that applies to the daemon would be skipped.
    """

    def enter() -> None:
        if label == UNCONFINED:
            return
        apparmor = '/proc/thread-self/attr/apparmor/exec'
        selinux = os.path.exists('/sys/fs/selinux/enforce')
        path = (
            apparmor if os.path.exists(apparmor) and not selinux else '/proc/thread-self/attr/exec'
        )
        descriptor = os.open(path, os.O_WRONLY)
        os.write(descriptor, os.fsencode(label if selinux else 'exec ' + label))
        os.close(descriptor)

    command = ['/bin/sh', '-c', 'exec "$0" "$@"', script, '-', 'selftest', '-', '-']
    try:
        completed = subprocess.run(
            command,
            preexec_fn=enter,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env={'LC_ALL': 'C', 'PATH': '/usr/sbin:/usr/bin:/sbin:/bin'},
        )
    except subprocess.TimeoutExpired:
        return LabelTrial(False, label, 'no answer within %d s' % timeout_s)
    except (OSError, subprocess.SubprocessError) as error:
        return LabelTrial(
            None,
            label,
            'cannot change to the AppArmor profile or SELinux context %s: %s' % (label, error),
        )
    lines = completed.stderr.decode(errors='replace').strip().splitlines()
    message = lines[-1] if lines else 'exit status %d without a message' % completed.returncode
    return LabelTrial(
        completed.returncode == 0 and message.startswith('selftest: ok'), label, message
    )


def _label(root: str, pid: int) -> str:
    label = files.read_optional(root, 'proc/%d/attr/current' % pid) or UNCONFINED
    # AppArmor appends the mode in parentheses.
    return label.rsplit(' (', 1)[0] if label.endswith(')') else label
