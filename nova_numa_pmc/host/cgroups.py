# SPDX-License-Identifier: Apache-2.0
"""Find a guest's control groups and read its memory per node.

Nothing here is built from a guest's name: the path of QEMU's main thread is
read from ``/proc/PID/cgroup`` and joined to the mount point that
``/proc/self/mountinfo`` gives for that hierarchy, so partitions, truncated
and escaped names and container mounts come out as they are.

The shapes libvirt makes (src/util/vircgroup.c, src/hypervisor/domain_cgroup.c)::

    MACHINE/libvirt/{emulator,vcpuN,iothreadN}   from 7.1.0 under systemd
    MACHINE/{emulator,vcpuN,iothreadN}           before, and without systemd

where MACHINE is ``machine-qemu\\x2d<id>\\x2d<name>.scope`` or
``qemu-<id>-<name>.libvirt-qemu``. Anything else is not taken for a guest.
"""

from __future__ import annotations

import errno
import os

from nova_numa_pmc.exceptions import CpusetError, GuestGone
from nova_numa_pmc.host.files import read_kernel_file
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

#: Share of a guest's memory that may be on other nodes without being worth a move.
_NEGLIGIBLE_RATIO = 0.01


class GuestGroups(Record):
    """A guest's own control groups, as absolute directories.

    :param version: 1 or 2, of the hierarchy that holds the cpuset controller
    :param pid: QEMU's main process
    :param scope: the machine's group; nothing above it is the guest's own
    :param target: the group above the children: libvirt's delegated ``libvirt/`` where there is
        one with a cpuset, else the scope
    :param children: the emulator, vcpuN and iothreadN groups that have a cpuset
    :param main: the group that QEMU's main thread is in
    :param writes_target: cpusets are written to ``target`` itself (v2, without usable children);
        else to each child, and ``target`` stays wide
    :param memory: the directory whose ``memory.numa_stat`` counts the guest, None: not known
    :param proc: its directory in procfs
    """

    version: int
    pid: int
    scope: str
    target: str
    children: tuple[str, ...]
    main: str
    writes_target: bool
    memory: str | None
    proc: str


def find(pid: int | None, root: str = '/') -> GuestGroups:
    """Find the groups of the guest whose QEMU main process is ``pid``.

    :param pid: None: not known, and :class:`GuestGone` is raised
    :param root: where ``proc`` and the control group mounts are found (tests)
    :raises CpusetError: not a libvirt guest's group, or one without a cpuset
    :raises GuestGone: there is no such process any more
    """
    pid, version, hierarchies, mounts, (scope, tail) = _enter(pid, 'cpuset', root)
    if not tail:
        raise CpusetError(
            "%s: QEMU is in none of libvirt's control groups there: not yet started, or not a "
            'libvirt guest' % scope
        )
    main = os.path.join(scope, *tail)
    nested = tail[0] == 'libvirt'
    target = os.path.join(scope, 'libvirt') if nested else scope
    own = children(target)
    # The whole guest is written only if nothing else can be: libvirt's own commands write the
    # threads' groups, and fail if a group above them is narrower.
    writes_target = version == 2 and (not own or (nested and main not in own))
    if writes_target and not _has_cpuset(target):
        target = scope
    if not _has_cpuset(target) or not (writes_target or main in own):
        raise CpusetError(
            "%s: no cpuset in the guest's own groups: cpuset is missing in its "
            'cgroup.controllers (v2), or libvirt is configured not to use it '
            '(cgroup_controllers in qemu.conf)' % main
        )
    memory = _memory_group(version, (scope, target), hierarchies, mounts, root)
    return GuestGroups(
        version,
        pid,
        scope,
        target,
        own,
        main if _has_cpuset(main) else target,
        writes_target,
        memory,
        os.path.join(root, 'proc', '%d' % pid),
    )


def machine(pid: int | None, controller: str, root: str = '/') -> str:
    """Return the directory of a guest's machine group in a controller's hierarchy.

    The hierarchy is the unified one if the controller has none of its own.

    :raises CpusetError: not a libvirt guest's group, or the hierarchy is not mounted
    :raises GuestGone: there is no such process any more
    """
    return locate(pid, controller, root)[1]


def memory_group(pid: int | None, root: str = '/') -> tuple[int, str]:
    """Return (version, directory) of the group whose ``memory.numa_stat`` counts a guest.

    :raises CpusetError: as :func:`machine`, or no group has that file
    :raises GuestGone: there is no such process any more
    """
    version, scope, tail = locate(pid, 'memory', root)
    # On v1 the scope's sums may leave out the groups below it (use_hierarchy).
    directory = _counting_memory((scope,) if version == 2 else (os.path.join(scope, *tail), scope))
    if directory is None:
        raise CpusetError(
            '%s: no memory.numa_stat: enable the memory controller for machine.slice' % scope
        )
    return version, directory


def locate(pid: int | None, controller: str, root: str = '/') -> tuple[int, str, list[str]]:
    """Return (version, machine's directory, components below it) in a controller's hierarchy.

    :raises CpusetError, GuestGone: as :func:`machine`
    """
    _, version, _, _, (scope, tail) = _enter(pid, controller, root)
    return version, scope, tail


def _enter(
    pid: int | None, controller: str, root: str
) -> tuple[int, int, dict[str, str], str, tuple[str, list[str]]]:
    """Find a guest's machine in a controller's hierarchy.

    :returns: (pid, version, its paths by controller, the mounts, those of :func:`_locate`)
    """
    if pid is None:
        raise GuestGone('no process of the guest is known')
    proc = os.path.join(root, 'proc', '%d' % pid)
    hierarchies = _hierarchies(proc)
    version = 1 if controller in hierarchies else 2
    key = controller if version == 1 else ''
    if key not in hierarchies:
        raise CpusetError(
            '%s/cgroup: no %s controller and no unified hierarchy: enable the %s controller'
            % (proc, controller, controller)
        )
    mounts = _read(os.path.join(root, 'proc/self/mountinfo'))
    return pid, version, hierarchies, mounts, _locate(hierarchies[key], key, mounts, root)


def memory_by_node(groups: GuestGroups) -> dict[int, int] | None:
    """Read a guest's bytes of anonymous and shared memory on each node.

    Source: ``memory.numa_stat``, in bytes on v2, in pages on v1, where shared pages count as
    anonymous and locked ones apart (Documentation/admin-guide/cgroup-v2.rst and
    cgroup-v1/memory.rst). Page cache is left out, as a cpuset moves only what is mapped; huge
    pages of a pool are not counted there.

    :returns: {node id: bytes}, or None when the kernel does not report it
    """
    if groups.memory is None:
        return None
    return group_memory_by_node(groups.version, groups.memory)


def group_memory_by_node(version: int, directory: str) -> dict[int, int] | None:
    """Read the bytes by node of the group that :func:`memory_group` found."""
    wanted, unit = (
        (('anon', 'shmem'), 1)
        if version == 2
        else (('hierarchical_anon', 'hierarchical_unevictable'), os.sysconf('SC_PAGE_SIZE'))
    )
    by_node: dict[int, int] = {}
    try:
        for line in read_kernel_file(os.path.join(directory, 'memory.numa_stat')).splitlines():
            fields = line.split(' ')
            if fields[0].partition('=')[0] not in wanted:
                continue
            for field in fields[1:]:
                node, _, count = field.partition('=')
                node_id = int(node[1:])
                by_node[node_id] = by_node.get(node_id, 0) + int(count) * unit
    except (OSError, ValueError):
        return None
    return by_node or None


def bytes_off(by_node: Mapping[int, int], nodes: Container[int]) -> int:
    """Return the sum of {node id: bytes} over all nodes except ``nodes``."""
    return sum(size for node, size in by_node.items() if node not in nodes)


def bytes_off_above(
    by_node: Mapping[int, int], nodes: Container[int], negligible_bytes: int
) -> int:
    """Return :func:`bytes_off`, or 0 if that is negligible.

    :param negligible_bytes: the most that is negligible, unless 1 % of all is more
    """
    off_bytes = bytes_off(by_node, nodes)
    few_bytes = max(negligible_bytes, _NEGLIGIBLE_RATIO * sum(by_node.values()))
    return off_bytes if off_bytes > few_bytes else 0


def resident_bytes(groups: GuestGroups, *names: str) -> int | None:
    """Return the sum of the fields ``names`` of /proc/PID/status ('VmRSS', 'HugetlbPages').

    :returns: bytes, or None when a name is missing or unreadable
    """
    try:
        lines = dict(
            line.split(':', 1)
            for line in read_kernel_file(os.path.join(groups.proc, 'status')).splitlines()
        )
        return sum(int(lines[name].split()[0]) << 10 for name in names)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _read(path: str) -> str:
    try:
        return read_kernel_file(path)
    except OSError as error:
        gone = GuestGone if error.errno in (errno.ENOENT, errno.ESRCH) else CpusetError
        raise gone('%s: %s' % (path, error.strerror or error)) from None


def _hierarchies(proc: str) -> dict[str, str]:
    """Map controller names ('' for the unified hierarchy) to the process's path in each."""
    paths = {}
    for line in _read(os.path.join(proc, 'cgroup')).splitlines():
        number, _, rest = line.partition(':')
        controllers, colon, path = rest.partition(':')
        if not (colon and number.isdigit() and path.startswith('/')):
            raise CpusetError('%s/cgroup: unreadable line %.80r' % (proc, line))
        if path.endswith(' (deleted)'):
            raise GuestGone('%s/cgroup: the group has been deleted' % proc)
        for controller in controllers.split(',') if controllers else ('',):
            paths[controller] = path
    return paths


def _locate(path: str, controller: str, mounts: str, root: str) -> tuple[str, list[str]]:
    """Split a process's path at its machine's group.

    :returns: (directory of the machine's group, the components below it)
    """
    parts = path.split('/')
    position = max((i for i, part in enumerate(parts) if _is_machine(part)), default=None)
    if position is None or parts[position + 1 :] not in (
        [],
        ['libvirt'],
        ['emulator'],
        ['libvirt', 'emulator'],
    ):
        raise CpusetError("%s is not a libvirt guest's control group: left alone" % path)
    scope = '/'.join(parts[: position + 1])
    seen = False
    for mount_root, mount_point in _mounts(mounts, controller):
        seen = True
        prefix = mount_root.rstrip('/') + '/'
        relative = scope[len(prefix) :] if scope.startswith(prefix) else ''
        directory = os.path.join(root, mount_point.lstrip('/'), relative)
        if relative and '..' not in relative.split('/') and os.path.isdir(directory):
            return directory, parts[position + 1 :]
    if not seen:
        raise CpusetError(
            'no mounted control group hierarchy with %s: mount it'
            % (controller or 'the unified controllers')
        )
    if '..' in parts:
        raise CpusetError(
            "%s is outside the control groups that this process sees: run in the host's control "
            'group namespace' % path
        )
    raise GuestGone('%s: the group no longer exists' % scope)


def _is_machine(name: str) -> bool:
    return (name.startswith('machine-qemu') and name.endswith('.scope')) or name.endswith(
        '.libvirt-qemu'
    )


def _mounts(text: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield (root, mount point) of each mount of a controller's hierarchy ('': unified)."""
    for line in text.splitlines():
        left, dash, right = line.partition(' - ')
        fields, kind = left.split(' '), right.split(' ')
        if not dash or len(fields) < 6 or len(kind) < 3:
            continue
        if (
            kind[0] == 'cgroup2'
            if not controller
            else (kind[0] == 'cgroup' and controller in kind[-1].split(','))
        ):
            yield _unescape(fields[3]), _unescape(fields[4])


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    for code, char in (('\\040', ' '), ('\\011', '\t'), ('\\012', '\n'), ('\\134', '\\')):
        text = text.replace(code, char)
    return text


def children(base: str) -> tuple[str, ...]:
    """Return the emulator's, vCPUs' and I/O threads' groups that have a cpuset.

    :raises GuestGone: the group above them is gone
    """
    groups = []
    try:
        names = sorted(os.listdir(base))
    except OSError as error:
        raise GuestGone('%s: %s' % (base, error.strerror)) from None
    for name in names:
        if _holds_threads(name) and _has_cpuset(os.path.join(base, name)):
            groups.append(os.path.join(base, name))
    return tuple(groups)


def _holds_threads(name: str) -> bool:
    for kind in ('vcpu', 'iothread'):
        if name.startswith(kind):
            return name[len(kind) :].isdigit()
    return name == 'emulator'


def _has_cpuset(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, 'cpuset.cpus'))


def _memory_group(
    version: int, own: tuple[str, str], hierarchies: Mapping[str, str], mounts: str, root: str
) -> str | None:
    """Find the guest's group that counts its memory; None where there is none."""
    if version == 1:
        try:
            scope, tail = _locate(hierarchies.get('memory', '/'), 'memory', mounts, root)
        except CpusetError:
            return None
        own = (os.path.join(scope, *tail), scope)
    return _counting_memory(own)


def _counting_memory(directories: Iterable[str]) -> str | None:
    """Return the first of the groups that counts its memory per node; None where none does."""
    for directory in directories:
        if os.path.exists(os.path.join(directory, 'memory.numa_stat')):
            return directory
    return None
