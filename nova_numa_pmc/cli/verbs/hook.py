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
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import exits, options
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import confinement, hook_files
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from nova_numa_pmc import model

    Problem = dict[str, str]
    Report = dict[str, Any]
    TryScript = Callable[[str, str], confinement.LabelTrial]


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
                type=_version,
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
        report = status(args.root, args.libvirt_version)
    else:
        report = {'install': install, 'remove': remove}[args.verb](args)
    if args.json:
        print(json.dumps(report, indent=2, sort_keys=True))
    else:
        _print(report)
    return exits.PROBLEM if report['problems'] else exits.OK


def install(args: argparse.Namespace, try_script: TryScript = confinement.try_script) -> Report:
    """Prove that the daemon can run the script, then put it in place.

    :returns: a report: changes, notes and problems, the last with remedies
    """
    _need_root(args.root)
    expected = _expected_script(args.root)
    problems, notes = [], []
    daemon = confinement.find_daemon(args.root)
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
    if _is_own(args.root):
        notes += _compile(site)
        probe = hook_files.put_probe(args.root, expected)
        try:
            _relabel()
            trial = _try(args.root, daemon, probe, try_script)
        finally:
            os.unlink(probe)
        notes.append('trial under %s: %s' % (trial.label, trial.message))
        problems += problems_of_trial(trial)
        if trial.ok is False:
            return _report(problems=problems, notes=notes)
    else:
        notes.append("not tried under the daemon's confinement: --root names another system")
    if problems and not args.force:
        return _report(problems=problems, notes=notes)
    changes = hook_files.install(
        args.root, expected, _reads_directory(args.root, args.libvirt_version)
    )
    if _is_own(args.root):
        notes += _relabel()
        notes += _reload(daemon, args.reload)
    return _report(changes=changes or ['nothing to change'], notes=notes, problems=[])


def remove(args: argparse.Namespace) -> Report:
    """Take the hook away; a running daemon needs no restart for that."""
    _need_root(args.root)
    return _report(changes=hook_files.remove(args.root) or ['nothing to remove'])


def status(
    root: str,
    libvirt_version: tuple[int, ...] | None = None,
    try_script: TryScript = confinement.try_script,
) -> Report:
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
            trial = _try(root, daemon, installed.path, try_script)
            problems += problems_of_trial(trial)
        problems += _problems_of_wiring(root, libvirt_version, installed, daemon, promises)
    return _report(
        problems=problems,
        installed=installed._asdict(),
        daemon=daemon and daemon._asdict(),
        trial=trial and trial._asdict(),
        decisions=[promise._asdict() for promise in promises],
    )


_INSTALL = 'nova-numa-rebalance hook install'


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


def _try(
    root: str, daemon: confinement.Daemon | None, script: str, try_script: TryScript
) -> confinement.LabelTrial:
    label = confinement.label_of_daemon(root, daemon)
    if label is None:
        return confinement.LabelTrial(
            None, None, "the daemon's label is unknown while it is not running"
        )
    return try_script(script, label)


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
            return _version(text.split()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            continue
    return None


def _version(text: str) -> tuple[int, ...]:
    """Parse 'X.Y.Z'."""
    return tuple(int(part) for part in text.split('.')[:3])


#: What the hook imports modules from; tests/unit/test_imports.py compares.
_PACKAGES_OF_HOOK = ('', 'conf', 'core', 'core/placement', 'host', 'host/paging', 'state')


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


def _print(report: Report) -> None:
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
