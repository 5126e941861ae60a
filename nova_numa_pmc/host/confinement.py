# SPDX-License-Identifier: Apache-2.0
"""Find the daemon that runs the hook, and try a script under its confinement.

A hook that the daemon may not execute kills every running guest when the
daemon restarts, so it is tried first, under the label of the daemon itself.
Debian's AppArmor profile of libvirtd lets it run ``/etc/libvirt/hooks/**`` under its
own profile (``rmix``) and ``/usr/bin/*`` unconfined (``PUx``), but nothing in
a virtual environment or /opt: hence /usr/bin/python3, which may then read
the package anywhere.
"""

from __future__ import annotations

import os
import subprocess

from nova_numa_pmc.host import files, processes
from nova_numa_pmc.record import Record

#: Daemons that run qemu hooks, the modular one first.
DAEMONS = ('virtqemud', 'libvirtd')
#: AppArmor profiles they run under where no daemon runs to ask.
_PROFILES = ('virtqemud', 'libvirtd', '/usr/sbin/virtqemud', '/usr/sbin/libvirtd')

UNCONFINED = 'unconfined'


class Daemon(Record):
    """A running libvirt daemon.

    :param started_s: when it started [s since the epoch]; None: not reported
    :param label: its AppArmor profile or SELinux context; 'unconfined' without one
    :param same_root: it sees the same file system root as we do (False: in a container)
    """

    name: str
    pid: int
    started_s: float | None
    label: str
    same_root: bool


class LabelTrial(Record):
    """Result of running a script under ``label``; ``ok`` is None where it could not be tried."""

    ok: bool | None
    label: str | None
    message: str


def find_daemon(root: str = '/') -> Daemon | None:
    """Return the daemon that runs on the host at ``root``, or None."""
    proc = os.path.join(root, 'proc')
    pid_by_name: dict[str, int] = {}
    for pid in files.list_pids(root):
        name = files.read_optional(proc, '%d/comm' % pid)
        if name in DAEMONS and name not in pid_by_name:
            pid_by_name[name] = pid
    for name in DAEMONS:
        if name in pid_by_name:
            return _describe(root, name, pid_by_name[name])
    return None


def label_of_daemon(root: str = '/', daemon: Daemon | None = None) -> str | None:
    """Return the label to try a hook under, or None where it cannot be known.

    Without a running daemon: the AppArmor profile that is loaded for it, or
    'unconfined' on a host with neither AppArmor nor SELinux.
    """
    if daemon is not None:
        return daemon.label
    if os.path.exists(os.path.join(root, 'sys/fs/selinux/enforce')):
        return None  # its context comes from a policy transition at its start
    profiles = files.read_optional(root, 'sys/kernel/security/apparmor/profiles') or ''
    loaded = {line.rsplit(' (', 1)[0] for line in profiles.splitlines()}
    return next((name for name in _PROFILES if name in loaded), UNCONFINED)


def try_script(script: str, label: str, timeout_s: float = 60) -> LabelTrial:
    """Run ``script - selftest`` as a daemon with ``label`` would; return the result.

    A shell is put under the label first and executes the script from there:
    entering the label by executing the script itself would skip the check
    that the daemon meets.
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
        done = subprocess.run(
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
        return LabelTrial(None, label, 'cannot enter the label %s: %s' % (label, error))
    lines = done.stderr.decode(errors='replace').strip().splitlines()
    last = lines[-1] if lines else 'exit status %d without a message' % done.returncode
    return LabelTrial(done.returncode == 0 and last.startswith('selftest: ok'), label, last)


def _describe(root: str, name: str, pid: int) -> Daemon:
    process = os.path.join(root, 'proc', str(pid))
    label = files.read_optional(process, 'attr/current') or UNCONFINED
    if label.endswith(')') and ' (' in label:  # AppArmor adds its mode
        label = label.rsplit(' (', 1)[0]
    return Daemon(
        name, pid, processes.started_s(root, process), label, processes.same_root(root, process)
    )
