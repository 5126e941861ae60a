# SPDX-License-Identifier: Apache-2.0
"""Read which modules of Nova and of ours the Python of one of Nova's services would find.

It may not be the Python that runs this command: a distribution's Nova is in another prefix than
what pip installs, and a virtual environment has a Nova of its own or none. Nothing is run, because
the service's account may be able to change what would run. Only files are read: those on the
interpreter's path as site.py determines it (docs.python.org/3/library/site.html), in a container
with links followed inside its root.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from typing import TYPE_CHECKING

from nova_numa_pmc.core.finding import WARNING, Finding
from nova_numa_pmc.host import files, ownership, services
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nova_numa_pmc.host.services import Process

_LINE_MAX_BYTES, _TEXT_MAX_BYTES, _ENTRIES_MAX = 4096, 1 << 18, 10_000
_MONITORS = 'nova/compute/monitors/cpu'
#: The directory with the entry points of an installed package.
_METADATA = re.compile(r'nova_numa_pmc(?:-([^-]+).*)?\.(?:dist|egg)-info')
#: The line of the hook's script that names the directory of its package (``hook_files.render``).
_HOOKS_SITE = re.compile(r'^site=(.+)$', re.M)
#: What an editable installation by setuptools maps: {top-level package: directory}.
_MAPPING = re.compile(r'^MAPPING\b[^=\n]*= *(\{[^\n]*\})', re.M)


class InterpreterModules(Record):
    """The modules that an interpreter finds.

    :param python: path of the interpreter, as the service sees it
    :param nova: directory of the package ``nova``; empty: it cannot be imported
    :param monitors: that of the package ``nova.compute.monitors.cpu``; empty: there is none
    :param shim: path of the module ``numa_pmc`` in that package; empty: there is none
    :param package: directory of ``nova_numa_pmc``; empty: it cannot be imported
    :param installed: 'VERSION in DIRECTORY' for each installation of our package with its entry
        points, in the order in which they are found: the first one counts
    """

    python: str
    nova: str = ''
    monitors: str = ''
    shim: str = ''
    package: str = ''
    installed: tuple[str, ...] = ()


class Service(Record):
    """A service that may run on a host.

    :param process: its process; None: it is not running
    :param refusal: why a process of its unit is not believed; empty: there is none
    :param modules: what its Python finds; None: that Python was not found
    """

    name: str
    process: Process | None
    refusal: str
    modules: InterpreterModules | None


def python_of(process: Process | None, script: str = '', root: str = '/') -> str | None:
    """Return the path of the Python that runs a service, or None if it is not found.

    :param process: the service; None: it is not running
    :param script: path of its script if it is not running ('/usr/bin/nova-compute')
    """
    if process is not None:
        # Not /proc/PID/exe: in a virtual environment, that is the Python that it was made from.
        script, root = process.command[0], process.root
        if _is_python(script):
            return script
    line = _read(script, root).partition('\n')[0][:_LINE_MAX_BYTES]
    words = line[2:].split() if line.startswith('#!') else []
    return words[0] if words and _is_python(words[0]) else None


def _is_python(path: str) -> bool:
    return os.path.basename(path).startswith('python') and os.path.isabs(path)


def read(python: str, base: str = '/') -> InterpreterModules:
    """Return what an interpreter would find.

    :param python: its path, as a process whose root is ``base`` names it
    """
    sites = list(dict.fromkeys(_sites(python, base)))
    finders = [
        os.path.join(site, name)
        for site in sites
        for name in _names(site, base)
        if name.endswith('_finder.py')
    ]
    mapped: dict[str, str] = {}
    for path in finders:
        mapped.update(_mapping(_read(path, base)))

    def find(package: str) -> str:
        paths = [os.path.join(site, package) for site in sites] + [mapped.get(package, '')]
        return next(
            (path for path in paths if _existing(os.path.join(path, '__init__.py'), base)), ''
        )

    nova = find('nova')
    monitors = _existing(os.path.join(os.path.dirname(nova), _MONITORS), base)
    return InterpreterModules(
        python,
        nova,
        monitors,
        _existing(os.path.join(monitors, 'numa_pmc.py'), base),
        find('nova_numa_pmc'),
        _installed(sites, base),
    )


def _installed(sites: Iterable[str], base: str) -> tuple[str, ...]:
    found = []
    # A virtual environment's lib64 is a link to its lib.
    for path in dict.fromkeys(ownership.real_path(site, base) for site in sites):
        for match in map(_METADATA.fullmatch, files.list_names(path or '')[:_ENTRIES_MAX]):
            if path and match:
                site = '/' + os.path.relpath(path, base)
                found.append(printable('%s in %s' % (match[1] or 'unknown', site)))
    return tuple(found)


def read_service(root: str, name: str) -> Service:
    """Return a service, running or not, with what its Python would find."""
    process, refusal = services.search(root, name)
    python = python_of(process, '/usr/bin/' + name, root)
    modules = read(python, process.root if process else root) if python else None
    return Service(name, process, refusal, modules)


def read_parts(root: str, found: Iterable[Service]) -> dict[str, tuple[str, ...]]:
    """Return {part of the package on this host: its installations, the first of which counts}.

    The hook's is the package that its script names, that of a service is what its Python finds.
    """
    parts = {service.name: service.modules.installed for service in found if service.modules}
    site = _HOOKS_SITE.search(_read(os.path.join('/', files.HOOKS, files.OUR_HOOK), root))
    if site:
        parts = {'hook': _installed([site[1].strip("'")], root), **parts}
    return {name: installed for name, installed in parts.items() if installed}


def check_parts(parts: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    """Check that no part is installed twice, and that all are of one version."""
    for name, (used, *others) in parts.items():
        if others:
            yield Finding(
                'installed-twice',
                WARNING,
                '%s uses nova-numa-pmc %s instead of %s' % (name, used, ', '.join(others)),
                'remove one of them: pip uninstall nova-numa-pmc removes one in /usr/local',
            )
    versions = {installed[0].partition(' ')[0] for installed in parts.values()}
    if len(versions) > 1:
        yield Finding(
            'versions-differ',
            WARNING,
            'the parts of nova-numa-pmc on this host are of versions '
            + ', '.join(sorted(versions)),
            'upgrade all of them, run nova-numa-rebalance hook install, and restart the services',
        )


def _sites(python: str, base: str) -> Iterator[str]:
    """Yield the directories of an interpreter's path that packages are installed in."""
    directory = os.path.dirname(python)
    prefix = os.path.dirname(directory)
    # Python first looks for pyvenv.cfg beside the path it was started by, which may be a link.
    for each in (directory, prefix):
        text = _read(os.path.join(each, 'pyvenv.cfg'), base)
        if text:
            pairs = (line.partition('=') for line in text.splitlines())
            keys = {key.strip().lower(): value.strip() for key, _, value in pairs}
            version = keys.get('version', keys.get('version_info', ''))
            yield from _packages((each,), '.'.join(version.split('.')[:2]), base)
            if keys.get('include-system-site-packages', '').lower() == 'true':
                home = os.path.join(keys.get('home', '/usr/bin'), 'python3')
                yield from _of_real(home, base)
            return
    yield from _of_real(python, base)


def _of_real(python: str, base: str) -> Iterator[str]:
    """Yield these directories of an interpreter that is in no virtual environment."""
    real_path = ownership.real_path(python, base)
    python = '/' + os.path.relpath(real_path, base) if real_path else python
    prefix = os.path.dirname(os.path.dirname(python))
    prefixes = ('/usr/local', '/usr') if prefix == '/usr' else (prefix,)
    yield from _packages(prefixes, os.path.basename(python).removeprefix('python'), base)


def _packages(prefixes: Iterable[str], version: str, base: str) -> Iterator[str]:
    """Yield the directories of packages below prefixes, and those that their .pth files add.

    Debian has directories of its own.
    """
    names = ('python' + version, 'python3'), ('site-packages', 'dist-packages')
    for parts in itertools.product(prefixes, ('lib', 'lib64'), *names):
        site = os.path.join(*parts)
        if not _existing(site, base):
            continue
        yield site
        lines = [
            line.strip()
            for name in _names(site, base)
            if name.endswith('.pth')
            for line in _read(os.path.join(site, name), base).splitlines()
        ]
        for line in lines:
            path = os.path.normpath(os.path.join(site, line))
            if line and not line.startswith(('#', 'import')) and _existing(path, base):
                yield path


def _mapping(text: str) -> dict[str, str]:
    match = _MAPPING.search(text)
    try:
        mapping = ast.literal_eval(match[1]) if match else {}
        return {str(name): str(path) for name, path in mapping.items()}
    except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError):
        return {}  # not what setuptools writes


def _names(path: str, base: str) -> list[str]:
    return files.list_names(ownership.real_path(path, base) or '')[:_ENTRIES_MAX]


def _existing(path: str, base: str) -> str:
    """Return the path if there is such a file below ``base``, else ''."""
    return path if path.startswith('/') and ownership.real_path(path, base) else ''


def _read(path: str, base: str) -> str:
    return ownership.read_text(path, base, _TEXT_MAX_BYTES)
