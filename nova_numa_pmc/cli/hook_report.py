# SPDX-License-Identifier: Apache-2.0
"""What ``hook install``, ``remove`` and ``status`` do, as reports."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from nova_numa_pmc.conf import host_options
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import confinement, hook_files
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from nova_numa_pmc import model

    Problem = dict[str, str]
    Report = dict[str, Any]

_INSTALL = 'nova-numa-rebalance hook install'
#: What the hook imports modules from; tests/unit/test_imports.py compares.
_PACKAGES_OF_HOOK = ('', 'conf', 'core', 'core/placement', 'host', 'host/paging', 'state')


def install(
    root: str,
    libvirt_version: tuple[int, ...] | None = None,
    reload: bool = False,
    force: bool = False,
) -> Report:
    """Prove that the daemon can run the script, then put it in place.

    :param libvirt_version: assumed; None: that of the installed libvirt
    :param reload: have the running daemon look for hooks again
    :param force: install in spite of problems other than a failed trial
    :returns: a report: changes, notes and problems, the last with remedies
    """
    _need_root(root)
    expected = _expected_script(root)
    problems, notes = [], []
    daemon = confinement.find_daemon(root)
    site = hook_files.package_site()
    exposed = hook_files.writable_by_others(site)
    if exposed:
        problems.append(
            _problem(
                'hook-exposed',
                '%s can be changed by users other than root, and the hook runs from it as root'
                % exposed,
                'chown it to root and chmod go-w, or install with --force',
            )
        )
    if _is_own(root):
        notes += _compile(site)
        probe = hook_files.put_probe(root, expected)
        try:
            _relabel()
            trial = _try(root, daemon, probe)
        finally:
            os.unlink(probe)
        notes.append('trial under %s: %s' % (trial.label, trial.message))
        problems += problems_of_trial(trial)
        if trial.ok is False:
            return _report(problems=problems, notes=notes)
    else:
        notes.append("not tried under the daemon's confinement: --root names another system")
    if problems and not force:
        return _report(problems=problems, notes=notes)
    changes = hook_files.install(root, expected, _reads_directory(root, libvirt_version))
    if _is_own(root):
        notes += _relabel()
        notes += _reload(daemon, reload)
    return _report(changes=changes or ['nothing to change'], notes=notes, problems=[])


def remove(root: str) -> Report:
    """Take the hook away; a running daemon needs no restart for that."""
    _need_root(root)
    return _report(changes=hook_files.remove(root) or ['nothing to remove'])


def status(root: str, libvirt_version: tuple[int, ...] | None = None) -> Report:
    """Report whether the hook works, what it decided last, and what is wrong.

    :param libvirt_version: assumed; None: that of the installed libvirt
    """
    installed = hook_files.inspect(root, _expected_script(root))
    daemon = confinement.find_daemon(root)
    problems: list[Problem] = []
    promises: list[model.Promise] = []
    trial = None
    try:
        promises = _promises(root)
    except StateError as error:
        problems.append(
            _problem(
                'promises-unreadable', str(error), 'the next start of a guest creates it again'
            )
        )
    if not installed.present:
        problems.append(_problem('hook-not-installed', 'the hook is not installed', _INSTALL))
    elif not installed.executable:
        problems.append(
            _problem(
                'hook-not-executable',
                '%s is not executable: libvirt skips it' % installed.path,
                _INSTALL,
            )
        )
    else:
        if not installed.current:
            problems.append(
                _problem(
                    'hook-outdated',
                    '%s is not what this version of the package installs' % installed.path,
                    _INSTALL,
                )
            )
        if _is_own(root) and os.geteuid() == 0:
            trial = _try(root, daemon, installed.path)
            problems += problems_of_trial(trial)
        problems += _problems_of_wiring(root, libvirt_version, installed, daemon, promises)
    return _report(
        problems=problems,
        installed=installed._asdict(),
        daemon=daemon and daemon._asdict(),
        trial=trial and trial._asdict(),
        decisions=[promise._asdict() for promise in promises],
    )


def _problems_of_wiring(
    root: str,
    libvirt_version: tuple[int, ...] | None,
    installed: hook_files.InstalledFiles,
    daemon: confinement.Daemon | None,
    promises: Iterable[model.Promise],
) -> Iterator[Problem]:
    if not _reads_directory(root, libvirt_version) and not installed.dispatcher:
        yield _problem(
            'hook-not-read',
            'this libvirt does not read hooks/qemu.d, and hooks/qemu does not run our script',
            _INSTALL,
        )
    if daemon is None:
        return
    if not daemon.same_root:
        yield _problem(
            'hook-in-container',
            '%s (pid %d) runs with a different file system root: in a container'
            % (daemon.name, daemon.pid),
            'install the package and the hook in its image',
        )
        return
    changed_s = os.stat(installed.path).st_ctime
    boot_s = confinement.boot_s(root) or 0
    seen = any(boot_s + promise.since_ns / 1e9 > changed_s for promise in promises)
    if daemon.started_s is not None and daemon.started_s < changed_s and not seen:
        yield _problem(
            'hook-not-seen',
            '%s (pid %d) has been running since before the hook was installed, and no guest has '
            'passed through the hook yet; a daemon that started without any qemu hook calls none'
            % (daemon.name, daemon.pid),
            "systemctl reload %s (after that, the next guest's start clears this)" % daemon.name,
        )


def _try(root: str, daemon: confinement.Daemon | None, script: str) -> confinement.LabelTrial:
    label = confinement.label_of_daemon(root, daemon)
    if label is None:
        return confinement.LabelTrial(
            None, None, "the daemon's label is unknown while it is not running"
        )
    return confinement.try_script(script, label)


def problems_of_trial(trial: confinement.LabelTrial) -> list[Problem]:
    """Return a trial's failures as problems."""
    if trial.ok:
        return []
    if trial.ok is None:
        return [
            _problem(
                'hook-not-tried',
                'the hook could not be tried: %s' % trial.message,
                'start the daemon and install as root, or install with --force',
            )
        ]
    return [
        _problem(
            'hook-confined',
            "the daemon's confinement (%s) does not let the hook run: %s"
            % (trial.label, trial.message),
            'AppArmor: allow it in /etc/apparmor.d/local/usr.sbin.libvirtd; SELinux: load the '
            'module in etc/selinux; then install again',
        )
    ]


def _expected_script(root: str) -> bytes:
    """Return our script's bytes; its time limit leaves the hook's own bound 1 s."""
    return hook_files.render(int(host_options.read_below(root).timeout_s + 1.999))


def _promises(root: str) -> list[model.Promise]:
    """Return the promises recorded since the host's boot, the latest first."""
    host_promises = promises_file.read(
        host_options.read_below(root).state_path(root), promises_file.read_boot_id(root)
    )
    return sorted(
        host_promises.promises.values() if host_promises else (),
        key=lambda promise: -promise.since_ns,
    )


def _reads_directory(root: str, libvirt_version: tuple[int, ...] | None) -> bool:
    version = libvirt_version or _installed_version(root)
    return version is None or version >= hook_files.DIRECTORY_SINCE


def _installed_version(root: str) -> tuple[int, ...] | None:
    """Return libvirt's version, or None where none answers (then: a recent one)."""
    if not _is_own(root):
        return None
    for command in ('libvirtd', 'virtqemud', 'virsh'):
        path = next(
            (p for p in ('/usr/sbin/' + command, '/usr/bin/' + command) if os.path.exists(p)), None
        )
        if path is None:
            continue
        try:
            text = subprocess.run(
                [path, '--version'], capture_output=True, timeout=10, stdin=subprocess.DEVNULL
            ).stdout.decode(errors='replace')
            return parse_version(text.split()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            continue
    return None


def parse_version(text: str) -> tuple[int, ...]:
    """Parse 'X.Y.Z'."""
    return tuple(int(part) for part in text.split('.')[:3])


def _compile(site: str) -> list[str]:
    """Byte-compile what the hook imports, for the interpreter that will run it."""
    done = subprocess.run(
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
    if done.returncode:
        return ['could not byte-compile the package: the hook will start slowly']
    return []


def _relabel() -> list[str]:
    """Give the files the labels that SELinux's policy names for their paths."""
    if not (os.path.exists('/sys/fs/selinux/enforce') and os.path.exists('/sbin/restorecon')):
        return []
    subprocess.run(['/sbin/restorecon', '-R', '/etc/libvirt/hooks'], check=False)
    return ['restored the SELinux labels of /etc/libvirt/hooks']


def _reload(daemon: confinement.Daemon | None, wanted: bool) -> list[str]:
    if daemon is None:
        return []
    if not wanted:
        return [
            '%s is running: systemctl reload %s makes it look for hooks again'
            % (daemon.name, daemon.name)
        ]
    os.kill(daemon.pid, signal.SIGHUP)
    return ['signalled %s (pid %d) to look for hooks again' % (daemon.name, daemon.pid)]


def _is_own(root: str) -> bool:
    return os.path.samefile(root, '/')


def _need_root(root: str) -> None:
    if _is_own(root) and os.geteuid() != 0:
        raise hook_files.HookError('only root can change /etc/libvirt/hooks: run with sudo')


def _problem(code: str, what: str, remedy: str) -> Problem:
    return {'code': code, 'problem': what, 'remedy': remedy}


def _report(
    problems: Iterable[Problem] = (),
    changes: Iterable[str] = (),
    notes: Iterable[str] = (),
    **more: Any,
) -> Report:
    return dict(more, problems=list(problems), changes=list(changes), notes=list(notes))
