# SPDX-License-Identifier: Apache-2.0
"""Install libvirt's qemu hook, inspect it, and remove it again.

libvirt runs ``hooks/qemu`` and then every executable in ``hooks/qemu.d/`` in alphabetical order
(``virHookCall`` in libvirt's src/util/virhook.c). Our hook is ``qemu.d/50-nova-numa-pmc``.

No step leaves an executable file half-written: files are written under a temporary name in
``hooks/``, where libvirt only runs files named after its drivers, and are then renamed into place.
"""

from __future__ import annotations

import itertools
import os
import shlex
import site
import stat
import sys
import sysconfig
from typing import TYPE_CHECKING

import nova_numa_pmc
from nova_numa_pmc import exceptions
from nova_numa_pmc.host import files, ownership
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY = '.nova-numa-pmc.new'
PROBE = '.nova-numa-pmc.probe'
INTERPRETER = '/usr/bin/python3'
_FILES_MAX = 100_000


class HookError(exceptions.NumaPmcError):
    """The hook cannot be installed or removed; the message says why and what to do."""


class InstalledFiles(Record):
    """Our script in the hook directory.

    :param path: its path
    :param current: whether the script is byte for byte what this package would install
    """

    path: str
    present: bool
    executable: bool
    current: bool


def package_site() -> str:
    """Return the directory that contains this package, which the script adds to ``sys.path``."""
    return os.path.dirname(os.path.dirname(os.path.abspath(nova_numa_pmc.__file__)))


def template() -> bytes:
    """Return the shipped script, with LF line endings.

    The script is looked for next to the package (a checkout) and then in the data directories of
    installations. With CRLF line endings, the kernel would look for an interpreter named
    ``/bin/sh\\r``, and every guest would die when the daemon is next restarted.

    :raises HookError: the script was not found
    """
    paths = (
        os.path.join(package_site(), 'hooks/qemu'),
        os.path.join(sysconfig.get_path('data'), 'share/nova-numa-pmc/hooks/qemu'),
        '/usr/share/nova-numa-pmc/hooks/qemu',
        '/usr/local/share/nova-numa-pmc/hooks/qemu',
    )
    for path in paths:
        try:
            with open(path, 'rb') as stream:
                return stream.read().replace(b'\r\n', b'\n')
        except FileNotFoundError:
            continue
    raise HookError(
        'the script was not found (tried %s): reinstall the package' % ', '.join(paths)
    )


def render(limit_s: int, site: str | None = None) -> bytes:
    """Return the bytes of our script for the package in the directory ``site``.

    :param limit_s: time after which the script kills Python [s], longer than the hook's own limit
    :raises HookError: the script was not found, or the directory's name contains a newline
    """
    site = shlex.quote(site or package_site())
    if '\n' in site:
        raise HookError('the name of the package directory contains a newline: %r' % site)
    text = template()
    text = text.replace(b'\nsite=\n', b'\nsite=' + os.fsencode(site) + b'\n', 1)
    return text.replace(b'\nlimit=3\n', b'\nlimit=%d\n' % limit_s, 1)


def find_writable_by_others(site: str, owner: int = 0) -> str | None:
    """Return the first file that the hook or the agent runs and not only root can change, or None.

    These are the interpreters, the directories that they import from, and all that is in them,
    links to other directories included: any module there may be imported as root. Of very many
    files, the first :data:`_FILES_MAX` are checked.

    :param site: the absolute path of the directory that contains the package
    :param owner: the uid that counts as root's
    """
    tops = [path for path in _search_path() if os.path.exists(path)]
    package = os.path.join(site, 'nova_numa_pmc')
    for path in (INTERPRETER, sys.executable, sys.prefix, package, *tops):
        found = ownership.find_changeable(path, owners={0, owner})
        if found is not None:
            return found
    for path in itertools.islice(_walk([site, *tops]), _FILES_MAX):
        found = _find_changeable(path, {0, owner})
        if found is not None:
            return found
    return None


def _search_path() -> list[str]:
    """Return what the hook's and the agent's interpreters import from, besides our package's site.

    The hook's imports from its standard library only (-I -S). The agent's, which is this one, has
    directories that .pth files name, too. What pip installs in /usr/local does not count: Debian
    and Ubuntu let the group staff write there, as in the directories of root's commands.
    """
    version = os.path.basename(os.path.realpath(INTERPRETER))
    libraries = [os.path.join('/usr', name, version) for name in ('lib', 'lib64')]
    environment = [] if sys.prefix == sys.base_prefix else [sys.prefix]
    local = [path for path in site.getsitepackages() if path.startswith('/usr/local/')]
    # The first is the directory of the command itself, which holds no modules.
    return environment + libraries + [path for path in sys.path[1:] if path not in local]


def _walk(tops: list[str]) -> Iterator[str]:
    """Yield all that is in some directories, and in those to which links there lead.

    :param tops: paths of directories, to which those links are appended
    """
    walked: set[str] = set()
    for top in tops:
        for directory, directories, names in os.walk(top):
            if directory in walked:
                directories.clear()
                continue
            walked.add(directory)
            for name in (*directories, *names):
                path = os.path.join(directory, name)
                yield path
                if os.path.islink(path) and os.path.isdir(path):
                    tops.append(os.path.realpath(path))


def _find_changeable(path: str, owners: set[int]) -> str | None:
    """Return a path if others than ``owners`` can change the file or what it is a link to."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None  # a module that is just being compiled
    if ownership.can_others_change(status, owners):
        return path
    if stat.S_ISLNK(status.st_mode) and os.path.exists(path):
        return ownership.find_changeable(path, owners=owners)
    return None


def inspect(root: str, expected: bytes) -> InstalledFiles:
    """Inspect the hook installed on the host at ``root``.

    :param expected: our script, as :func:`render` returns it
    """
    path = os.path.join(root, files.HOOKS, files.OUR_HOOK)
    content = _read(path)
    return InstalledFiles(
        path=path,
        present=content is not None,
        executable=content is not None and os.access(path, os.X_OK),
        current=content == expected,
    )


def install(root: str, expected: bytes) -> list[str]:
    """Put our script in place; return a line for each change that was made.

    :param expected: our script, as :func:`render` returns it
    """
    hooks = os.path.join(root, files.HOOKS)
    os.makedirs(os.path.join(hooks, 'qemu.d'), mode=0o755, exist_ok=True)
    is_changed = _put(hooks, files.OUR_HOOK, expected)
    return ['wrote %s' % os.path.join(hooks, files.OUR_HOOK)] if is_changed else []


def remove(root: str) -> list[str]:
    """Remove our script; return a line for each change that was made."""
    hooks = os.path.join(root, files.HOOKS)
    changes = []
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
