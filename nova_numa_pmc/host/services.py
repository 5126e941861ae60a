# SPDX-License-Identifier: Apache-2.0
"""Find the services that run on a host, and what each of them sees and may do.

Any process chooses its own command line, so a service is recognised by what it cannot choose:

- its control group, which systemd or a container's runtime has put it into: a unit of the
  service's name outside of user.slice and machine.slice, or a container. A process of a container
  counts only if it has a root directory of its own, as no group that an account has been delegated
  gives it, and if the container could load a kernel module, which makes it the host's root anyway
  (kolla and openstack-helm run nova-compute and libvirt so);
- its user namespace, which has to be ours;
- its executable, which only root can change, and, if that is Python, the script that it runs.

What a service's own account starts in the service's own group can still look like the service,
unless the service is root's. It gains no more than what that account could have told us anyway
through the service's configuration. A program that such an account starts set-uid has another
executable. Nothing that is found is ever executed.

If libvirt's daemon is not allowed to execute a hook, every running guest is killed when the daemon
restarts. A script is therefore tried first, under the daemon's own label. Debian's AppArmor
profile for libvirtd allows it to run ``/etc/libvirt/hooks/**`` under that same profile (``rmix``)
and ``/usr/bin/*`` unconfined (``PUx``), but nothing in a virtual environment or in /opt. The hook
therefore runs /usr/bin/python3, which, being unconfined, can read the package anywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import time

from nova_numa_pmc.host import files, ownership
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from typing import Union

    _Answer = Union['Process', str, None]


NOVA_COMPUTE, NOVA_SCHEDULER, NUMAD = 'nova-compute', 'nova-scheduler', 'numad'
AGENT = 'nova-numa-agent'
#: Services that are only believed if they run as root.
_OF_ROOT = frozenset({'libvirtd', 'virtqemud', NUMAD, AGENT})
#: Services that may run in a container without privileges: nothing but `check` looks for them.
_UNPRIVILEGED = frozenset({NOVA_SCHEDULER})
#: Units whose names do not contain the service's.
_UNITS = {
    NOVA_COMPUTE: r'devstack@n-cpu(?:-\d+)?\.service',
    NOVA_SCHEDULER: r'devstack@n-sch\.service',
}
#: A container's control group: 64 hexadecimal digits, after the runtime's name or alone. Docker:
#: docker-ID.scope, docker/ID; podman: libpod-ID.scope; Kubernetes: cri-containerd-ID.scope,
#: crio-ID.scope, kubepods…:cri-containerd:ID.
_CONTAINER = re.compile(r'(?:[\w.:-]*[-:])?[0-9a-f]{64}(?:\.scope)?')
#: Control groups of guests (libvirt's src/util/vircgroup.c), with and without systemd.
_GUEST = re.compile(r'machine-(?:qemu|lxc)\b.*\.scope|.*\.libvirt-(?:qemu|lxc)')
_COMMAND_MAX_BYTES = 1 << 16
_OWN_UID_MAP = 'proc/self/uid_map'
#: Capability with which a container's processes can become the host's root (linux/capability.h).
_SYS_MODULE = 16
# Process title that oslo.service and cotyledon set if setproctitle is installed.
_TITLE = re.compile(r'\S+: master process \[(?P<command>[^\0]*)\][ \0]*')

#: What to do about a process that is not believed.
REFUSAL_REMEDY = 'let root own the file and its directories, and nobody else write to them'
CONTAINER = 'container'
_SYSTEMCTL_TIMEOUT_S = 60


class Process(Record):
    """A running service.

    :param command: the program and its arguments
    :param uid, gid: its ids, of which it has no others (it is not set-uid)
    :param accounts: uids other than root's that may own its program and its files: that for which
        systemd runs the unit
    :param start_ns: CLOCK_BOOTTIME at which it was started; None if not reported
    :param started_s: the same [s since the epoch], up to a second too late
    :param label: its AppArmor profile or SELinux context, or 'unconfined' if there is none
    :param root: the process's root directory, as a path that we can open
    :param same_root: whether this is the host's own root directory (False in a container)
    :param unit: systemd's unit of it; :data:`CONTAINER` if it is in a container
    """

    name: str
    pid: int
    command: tuple[str, ...]
    uid: int
    gid: int
    accounts: frozenset[int]
    start_ns: int | None
    started_s: float | None
    label: str
    root: str
    same_root: bool
    unit: str


def find(root: str, name: str) -> Process | None:
    """Return the main process of a service, or None if the service is not running."""
    return search(root, name)[0]


def search(root: str, name: str) -> tuple[Process | None, str]:
    """Return (the main process of a service or None, why a process of its unit is not believed).

    The main process is a child of systemd or of the container's init, if there is one, and the
    oldest one of several.
    """
    found: list[Process] = []
    refusal = ''
    pids = [int(pid) for pid in files.list_names(os.path.join(root, 'proc')) if pid.isdigit()]
    for pid in sorted(pids):
        answer = _identify(root, pid, name)
        if isinstance(answer, str):
            refusal = refusal or answer
        elif answer is not None:
            found.append(answer)
    found.sort(key=lambda each: (_is_child(root, each.pid), each.started_s or 0, each.pid))
    return (found[0] if found else None), refusal


def unit_of(cgroup: str, name: str) -> str | None:
    """Return what the control group of a process says: whether it can be the service's.

    :param cgroup: text of the process's ``cgroup``
    :param name: the service's name
    :returns: the name of the service's own unit; :data:`CONTAINER` for a container of any name;
        None: the process is not the service
    """
    paths: dict[str, list[str]] = {}
    for line in cgroup.splitlines():
        _, _, rest = line.partition(':')
        controllers, _, path = rest.partition(':')
        # In another control group namespace than ours, it begins with '/../..'.
        parts = [part for part in path.split('/') if part not in ('', '..')]
        if 'user.slice' in parts or any(map(_GUEST.fullmatch, parts)):
            return None
        paths[controllers] = parts
    if not paths:
        return None
    # systemd's own hierarchy, else the unified one, else (v1 without systemd) any.
    parts = paths.get('name=systemd', paths.get('', next(iter(paths.values()))))
    if any(map(_CONTAINER.fullmatch, parts)):
        return CONTAINER
    # Only root names a unit directly below slices; what is below a unit is named by its processes.
    unit = next((part for part in parts if not part.endswith('.slice')), '')
    pattern = r'[\w.-]*%s[\w.-]*\.service' % name.replace('-', '[-_]')
    if parts[:1] != ['machine.slice'] and (
        re.fullmatch(pattern, unit) or re.fullmatch(_UNITS.get(name, pattern), unit)
    ):
        return unit
    return None


def _identify(root: str, pid: int, name: str) -> _Answer:
    """Return the service, None for another process, or why its executable is not believed."""
    directory = os.path.join(root, 'proc', str(pid))
    unit = unit_of(files.read_optional(directory, 'cgroup') or '', name)
    if unit is None:
        return None
    try:
        executable = os.readlink(os.path.join(directory, 'exe')).removesuffix(' (deleted)')
        with open(os.path.join(directory, 'cmdline'), 'rb') as stream:
            command = _command(stream.read(_COMMAND_MAX_BYTES))
        status = files.read_fields(directory, 'status')
        uids, gids = ({int(each) for each in status[key].split()} for key in ('Uid', 'Gid'))
    except PermissionError:
        text = '%s (pid %d): not recognised without privileges: run as root' % (name, pid)
        return None if unit == CONTAINER else text
    except (OSError, KeyError, ValueError):
        return None  # ended meanwhile, or a thread of the kernel
    programs = _programs(os.path.basename(executable), command, name)
    root_uid = ownership.root_uid(root)
    is_same = _same_root(root, directory)
    if (
        programs is None
        or len(uids) != 1
        or (name in _OF_ROOT and uids != {root_uid})
        or files.read_optional(directory, 'uid_map') != files.read_optional(root, _OWN_UID_MAP)
        or (unit == CONTAINER and not _is_in_container(root, directory, status, name, is_same))
    ):
        return None
    base = root if is_same else os.path.join(directory, 'root')
    # An account's own unit may run the account's own programs (devstack), but not its own Python.
    accounts = frozenset(() if unit == CONTAINER else uids) - {root_uid}
    exposed = ownership.find_changeable(executable, base, {root_uid})
    for program in programs:
        exposed = exposed or ownership.find_changeable(program, base, {root_uid, *accounts})
    if exposed:
        return '%s (pid %d): not believed, because users other than root can change %s' % (
            name,
            pid,
            exposed,
        )
    start_ns = files.process_start_ns(pid, root)
    return Process(
        name,
        pid,
        command,
        min(uids),
        min(gids),
        accounts,
        start_ns,
        _started_s(root, start_ns),
        _label(root, pid),
        base,
        is_same,
        unit,
    )


def _command(raw: bytes) -> tuple[str, ...]:
    text = raw.decode('utf-8', 'replace')
    title = _TITLE.fullmatch(text)
    parts = title['command'].split(' ') if title else text.split('\0')
    return tuple(part for part in parts if part)


def _programs(executable: str, command: tuple[str, ...], name: str) -> list[str] | None:
    """Return the files besides its executable that determine what a process runs.

    :param executable: the name of the executable
    :returns: the paths; None: the process does not run the service
    """
    if executable == name:
        return []
    if not executable.startswith('python') or not command:
        return None
    programs = [command[0]]
    if os.path.basename(command[0]).startswith('python'):
        programs += [part for part in command[1:] if not part.startswith('-')][:1]
    if os.path.basename(programs[-1]) != name:
        return None
    # With '#!/usr/bin/env python3', the interpreter is only named; the executable shows which.
    return [path for path in programs[:-1] if os.path.isabs(path)] + programs[-1:]


def _is_in_container(
    root: str, directory: str, status: dict[str, str], name: str, is_same_root: bool
) -> bool:
    """Return whether a process is in a container that is trusted, or in our own.

    :param directory: the process's directory in procfs
    :param is_same_root: whether its root directory is the host's
    """
    own = files.read_optional(root, 'proc/self/cgroup')
    if own is not None and own == files.read_optional(directory, 'cgroup'):
        return True
    # An account that has been delegated a group can name a group below it as a container's, and
    # its processes have the host's root directory and, usually, a full bounding set.
    if is_same_root:
        return False
    try:
        is_privileged = bool(int(status['CapBnd'], 16) >> _SYS_MODULE & 1)
    except (KeyError, ValueError):
        is_privileged = False
    return is_privileged or name in _UNPRIVILEGED


def _is_child(root: str, pid: int) -> bool:
    """Return whether a process was started by another one than systemd or a container's init."""
    parent = files.read_fields(root, 'proc/%d/status' % pid).get('PPid', '').strip()
    return pid != 1 and parent != '1'


def _started_s(root: str, start_ns: int | None) -> float | None:
    """Return a process's start time in seconds since the epoch, or None if not reported.

    The kernel rounds the boot time down to a whole second. A second is added, so that a service
    which was restarted right after a file had changed does not look older than the change.
    """
    boot_s = files.read_fields(root, 'proc/stat', ' ').get('btime')
    return None if start_ns is None or boot_s is None else int(boot_s) + 1 + start_ns / 1e9


def _same_root(root: str, process: str) -> bool:
    """Return whether a process sees the root directory ``root`` (False in a container).

    :param process: the process's directory in procfs
    """
    try:
        return os.path.samefile(os.path.join(process, 'root'), root)
    except OSError:
        return False


#: Daemons that run qemu hooks, the modular one first.
DAEMONS = ('virtqemud', 'libvirtd')
#: AppArmor profiles that the daemons run under; used if none is running.
_PROFILES = ('virtqemud', 'libvirtd', '/usr/sbin/virtqemud', '/usr/sbin/libvirtd')

UNCONFINED = 'unconfined'


class LabelTrial(Record):
    """Result of running a script under ``label``; ``ok`` is None if it could not be tried."""

    ok: bool | None
    label: str | None
    message: str


def find_daemon(root: str = '/') -> Process | None:
    """Return the daemon that runs on the host at ``root``, or None if none does."""
    return next(filter(None, (find(root, name) for name in DAEMONS)), None)


def why_not_believed(root: str = '/') -> str:
    """Return why a process that seems to be a daemon is not believed; empty if none seems so."""
    refusals = (search(root, name)[1] for name in DAEMONS)
    return next(filter(None, refusals), '')


def reloaded_ns(process: Process) -> int | None:
    """Return when systemd last reloaded a service successfully, by CLOCK_BOOTTIME [ns].

    systemd notes each change of a unit's state, a reload's beginning and end included, but a
    reload does not make the unit active anew (``unit_notify`` in systemd's src/core/unit.c), so it
    is a change since the unit became active.

    :returns: 0: not since it was started; None: unknown, as in a container
    """
    if process.unit == CONTAINER:
        return None
    names = ('StateChangeTimestampMonotonic', 'ActiveEnterTimestampMonotonic', 'ReloadResult')
    answer = _systemctl('show', '--property=' + ','.join(names), '--', process.unit)
    values = dict(line.partition('=')[::2] for line in answer.stdout.splitlines())
    try:
        changed_us, entered_us = (int(values[name]) for name in names[:2])
    except (KeyError, ValueError):
        return None
    if changed_us <= entered_us or values.get('ReloadResult') != 'success':
        return 0
    return files.boottime_ns() - (time.monotonic_ns() - changed_us * 1000)


def reload(process: Process) -> str:
    """Make systemd reload a service; return why this failed, else ''."""
    answer = _systemctl('reload', '--', process.unit)
    return answer.stderr.strip() or 'failed' if answer.returncode else ''


def _systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ['systemctl', *arguments]
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SYSTEMCTL_TIMEOUT_S,
            text=True,
            errors='replace',
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, '', str(error))


def label_of_daemon(root: str = '/', daemon: Process | None = None) -> str | None:
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
