# SPDX-License-Identifier: Apache-2.0
"""Install libvirt's qemu hook, inspect it, and remove it again.

libvirt runs ``hooks/qemu`` and, since 6.5.0, then every executable in ``hooks/qemu.d/`` in
alphabetical order (``virHookCall`` in libvirt's src/util/virhook.c). Our hook is always
``qemu.d/50-nova-numa-pmc``. With an older libvirt, a dispatcher at ``hooks/qemu`` runs it after
the hook that was there before.

No step leaves an executable file half-written, or the host without the hook that it had: files are
written under a temporary name in ``hooks/``, where libvirt only runs files named after its
drivers, and are then renamed into place.
"""

from __future__ import annotations

import os
import shlex
import sysconfig

import nova_numa_pmc
from nova_numa_pmc import exceptions
from nova_numa_pmc.host import files
from nova_numa_pmc.record import Record

MAIN = 'qemu'
CHAINED = 'qemu.nova-numa-pmc-chained'
TEMPORARY = '.nova-numa-pmc.new'
PROBE = '.nova-numa-pmc.probe'
INTERPRETER = '/usr/bin/python3'

#: The first libvirt that runs the scripts in ``hooks/qemu.d/``.
DIRECTORY_SINCE = (6, 5, 0)
_DISPATCHER_MARK = b'# nova-numa-pmc: runs the qemu hook'


class HookError(exceptions.NumaPmcError):
    """Failure to install or remove the hook; the message says why and what to do."""


class InstalledFiles(Record):
    """Files in the hook directory.

    :param path: path of our script
    :param current: whether the script is byte for byte what this package would install
    :param dispatcher: whether ``hooks/qemu`` is our dispatcher (for libvirt before 6.5)
    :param chained: path of the hook that the dispatcher runs first, or None
    """

    path: str
    present: bool
    executable: bool
    current: bool
    dispatcher: bool
    chained: str | None


def package_site() -> str:
    """Return the directory that contains this package, which the script adds to ``sys.path``."""
    return os.path.dirname(os.path.dirname(os.path.abspath(nova_numa_pmc.__file__)))


def template(name: str) -> bytes:
    """Return the shipped script ``name``, with LF line endings.

    The script is looked for next to the package (a checkout) and then in the data directories of
    installations. With CRLF line endings, the kernel would look for an interpreter named
    ``/bin/sh\\r``, and every guest would die when the daemon is next restarted.

    :raises HookError: the script was not found
    """
    paths = (
        os.path.join(package_site(), 'hooks', name),
        os.path.join(sysconfig.get_path('data'), 'share/nova-numa-pmc/hooks', name),
        os.path.join('/usr/share/nova-numa-pmc/hooks', name),
        os.path.join('/usr/local/share/nova-numa-pmc/hooks', name),
    )
    for path in paths:
        try:
            with open(path, 'rb') as stream:
                return stream.read().replace(b'\r\n', b'\n')
        except FileNotFoundError:
            continue
    raise HookError(
        'the script %s was not found (tried %s): reinstall the package' % (name, ', '.join(paths))
    )


def render(limit_s: int, site: str | None = None) -> bytes:
    """Return the bytes of our script for the package in the directory ``site``.

    :param limit_s: time after which the script kills Python [s], longer than the hook's own limit
    :raises HookError: the script was not found, or the directory's name contains a newline
    """
    site = shlex.quote(site or package_site())
    if '\n' in site:
        raise HookError('the name of the package directory contains a newline: %r' % site)
    text = template('qemu')
    text = text.replace(b'\nsite=\n', b'\nsite=' + os.fsencode(site) + b'\n', 1)
    return text.replace(b'\nlimit=3\n', b'\nlimit=%d\n' % limit_s, 1)


def find_writable_by_others(site: str) -> str | None:
    """Return the first directory on the package's path that not only root can change, or None.

    The hook imports the package as root.
    """
    path = os.path.join(site, 'nova_numa_pmc')
    while True:
        status = os.stat(path)
        is_open_to_others = status.st_mode & 0o022 and not status.st_mode & 0o1000
        if status.st_uid != 0 or is_open_to_others:
            return path
        if path == '/':
            return None
        path = os.path.dirname(path)


def inspect(root: str, expected: bytes) -> InstalledFiles:
    """Inspect the hooks installed on the host at ``root``.

    :param expected: our script, as :func:`render` returns it
    """
    hooks = os.path.join(root, files.HOOKS)
    path = os.path.join(hooks, files.OUR_HOOK)
    chained = os.path.join(hooks, CHAINED)
    content = _read(path)
    return InstalledFiles(
        path=path,
        present=content is not None,
        executable=content is not None and os.access(path, os.X_OK),
        current=content == expected,
        dispatcher=_is_dispatcher(os.path.join(hooks, MAIN)),
        chained=chained if os.path.lexists(chained) else None,
    )


def install(root: str, expected: bytes, libvirt_runs_directory: bool) -> list[str]:
    """Put our script in place; return a line for each change that was made.

    :param expected: our script, as :func:`render` returns it
    :param libvirt_runs_directory: whether libvirt runs the scripts in ``qemu.d/`` itself (since
        6.5.0)
    :raises HookError: a hook that was there before cannot be kept
    """
    hooks = os.path.join(root, files.HOOKS)
    changes = []
    os.makedirs(os.path.join(hooks, 'qemu.d'), mode=0o755, exist_ok=True)
    if _put(hooks, files.OUR_HOOK, expected):
        changes.append('wrote %s' % os.path.join(hooks, files.OUR_HOOK))
    if libvirt_runs_directory:
        changes += _unchain(hooks)
    else:
        changes += _chain(hooks)
    return changes


def remove(root: str) -> list[str]:
    """Remove our files and restore a chained hook; return a line for each change that was made."""
    hooks = os.path.join(root, files.HOOKS)
    changes = _unchain(hooks)
    path = os.path.join(hooks, files.OUR_HOOK)
    if os.path.lexists(path):
        os.unlink(path)
        changes.append('removed %s' % path)
    try:
        os.rmdir(os.path.join(hooks, 'qemu.d'))
    except OSError:
        pass  # it contains hooks of others, or does not exist
    return changes


def put_probe(root: str, expected: bytes) -> str:
    """Write the script beside the hooks, where libvirt never runs it, and return its path.

    Confinement depends on path and label, so a trial has to run the script from there.
    """
    hooks = os.path.join(root, files.HOOKS)
    os.makedirs(hooks, mode=0o755, exist_ok=True)
    _put(hooks, PROBE, expected)
    return os.path.join(hooks, PROBE)


def _chain(hooks: str) -> list[str]:
    main = os.path.join(hooks, MAIN)
    chained = os.path.join(hooks, CHAINED)
    changes = []
    if os.path.lexists(main) and not _is_dispatcher(main):
        if not os.path.lexists(chained):
            os.link(main, chained, follow_symlinks=False)
            changes.append('kept %s as %s' % (main, chained))
        elif not os.path.samestat(os.lstat(main), os.lstat(chained)):
            raise HookError(
                '%s was replaced after %s had been kept: merge the two into %s, '
                'remove the other and run install again' % (main, chained, main)
            )
    if _put(hooks, MAIN, template('qemu-chain')):
        changes.append('wrote %s, which runs both' % main)
    return changes


def _unchain(hooks: str) -> list[str]:
    main = os.path.join(hooks, MAIN)
    chained = os.path.join(hooks, CHAINED)
    if not _is_dispatcher(main):
        return []
    if os.path.lexists(chained):
        os.rename(chained, main)
        return ['restored the former %s' % main]
    os.unlink(main)
    return ['removed %s' % main]


def _put(hooks: str, name: str, content: bytes) -> bool:
    """Write ``hooks/name`` atomically, owned by root with mode 0755; return whether it changed."""
    path = os.path.join(hooks, name)
    if (
        _read(path) == content
        and not os.path.islink(path)
        and os.stat(path).st_mode & 0o7777 == 0o755
    ):
        return False
    files.replace_file(path, content, os.path.join(hooks, TEMPORARY), mode=0o755)
    if os.geteuid() == 0:
        os.chown(path, 0, 0)  # a setgid directory would give its own group
    return True


def _read(path: str) -> bytes | None:
    try:
        with open(path, 'rb') as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_dispatcher(path: str) -> bool:
    return not os.path.islink(path) and _DISPATCHER_MARK in (_read(path) or b'')
