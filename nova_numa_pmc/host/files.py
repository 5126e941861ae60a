# SPDX-License-Identifier: Apache-2.0
"""Read small sysfs and procfs files as text, numbers or CPU lists; replace files atomically.

This module also reads the id of the host's boot and the time since then.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

import errno
import os
import time

from nova_numa_pmc.cpulist import BLANK, is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, StateError, TopologyError
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container

    #: A file's device, inode, times of the last change of its contents and of its status [ns],
    #: and size [bytes].
    Identity = tuple[int, int, int, int, int]

#: The kernel's directories of nodes and CPUs, below the root.
NODES, CPUS = 'sys/devices/system/node', 'sys/devices/system/cpu'
#: libvirt's directory of hooks, below the root, and our script in that directory.
HOOKS, OUR_HOOK = 'etc/libvirt/hooks', 'qemu.d/50-nova-numa-pmc'
#: More pages, or KiB, than any host has.
KERNEL_NUMBER_MAX = 1 << 50
#: No kernel file that is read here comes close to this limit, which is for files that a test or a
#: bind mount puts in their place.
_READ_MAX_BYTES = 1 << 20


def read_cpus(root: str, path: str) -> frozenset[int] | None:
    """Return the set of CPUs (or nodes) in a list file, or None if there is no such file.

    :raises TopologyError: the file cannot be read or understood
    """
    text = read_text(root, path)
    if text is None:
        return None
    try:
        return parse_cpulist(text)
    except CpuListError as error:
        raise TopologyError('%s: %s' % (os.path.join(root, path), error)) from error


def optional_cpus(root: str, path: str) -> frozenset[int]:
    """Return the set of CPUs (or nodes) in a list file; empty if it cannot be read."""
    try:
        return read_cpus(root, path) or frozenset()
    except TopologyError:
        return frozenset()


def read_text(root: str, path: str, read_max_bytes: int = 1 << 16) -> str | None:
    """Return a small file's text, stripped, or None if there is (no longer) such a file.

    :param read_max_bytes: the number of bytes that are read from the beginning
    :raises TopologyError: the file cannot be read
    """
    path = os.path.join(root, path)
    try:
        text = _read_bytes(path, read_max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TopologyError('%s: %s' % (path, error.strerror)) from error
    return text.decode('ascii', 'backslashreplace').strip(BLANK)


def read_kernel_file(path: str) -> str:
    """Read a kernel file to its end; kernfs may return it in parts.

    :raises OSError: the file cannot be read, or is larger than 1 MiB (EFBIG)
    """
    return os.fsdecode(_read_bytes(path))


def read_optional(root: str, path: str) -> str | None:
    """Return a kernel file's text, stripped, or None if it cannot be read."""
    try:
        return _read_bytes(os.path.join(root, path)).decode('utf-8', 'replace').strip(BLANK)
    except OSError:
        return None


def read_fields(root: str, path: str, separator: str = ':') -> dict[str, str]:
    """Return {name: value} of a kernel file with one field in a line; {} if it cannot be read."""
    lines = (read_optional(root, path) or '').splitlines()
    return {name: value for name, _, value in (line.partition(separator) for line in lines)}


def list_names(path: str) -> list[str]:
    """Return the sorted names in a directory; empty if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read_bytes(path: str, begin_max_bytes: int | None = None) -> bytes:
    """Read a file to its end.

    :param begin_max_bytes: read only as many bytes from the beginning, in one call
    """
    # This takes a third of the time of open(), which matters for the hook's hundreds of files.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        text = os.read(fd, begin_max_bytes or 65536)
        part = text if begin_max_bytes is None else b''
        while part:
            part = os.read(fd, 65536)
            text += part
            if len(text) > _READ_MAX_BYTES:
                raise OSError(errno.EFBIG, 'larger than 1 MiB', path)
        return text
    finally:
        os.close(fd)


def identity(path: str) -> Identity:
    """Return a file's identity, which changes whenever the file is changed or replaced.

    :raises OSError: the file's status cannot be read
    """
    status = os.stat(path)
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def start_ticks(stat: str) -> int:
    """Return the start time of a process or thread [ticks since boot].

    It is field 22 of ``stat`` (proc(5)); field 2, a name, may contain spaces and parentheses.

    :param stat: text of the process's or thread's ``stat``
    :raises ValueError, IndexError: the text has no such field
    """
    return int(stat.rpartition(')')[2].split()[19])


def ticks_ns(ticks: int) -> int:
    """Return a number of the kernel's ticks in ns."""
    return ticks * 10**9 // os.sysconf('SC_CLK_TCK')


def process_start_ns(pid: int | None, root: str) -> int | None:
    """Return the CLOCK_BOOTTIME at which a process began, or None if it is unknown."""
    try:
        stat = read_kernel_file(os.path.join(root, 'proc/%d/stat' % (pid or 0)))
        return ticks_ns(start_ticks(stat))
    except (OSError, ValueError, IndexError):
        return None


def changed_ns(path: str) -> int:
    """Return when a file's inode last changed, by CLOCK_BOOTTIME as the clocks are now [ns].

    Processes' start times are by the same clock, where ``btime`` of /proc/stat is rounded down to
    a second.

    :raises OSError: the file's status cannot be read
    """
    return boottime_ns() - (time.time_ns() - os.stat(path).st_ctime_ns)


def has_capability(root: str, process: str, number: int) -> bool | None:
    """Return whether a process has a capability, or None if not reported.

    :param process: 'self' or a pid
    :param number: the capability's number in linux/capability.h
    """
    try:
        return bool(int(read_fields(root, 'proc/%s/status' % process)['CapEff'], 16) >> number & 1)
    except (KeyError, ValueError):
        return None


def parse_integer(root: str, path: str, digits: str, maximum: int) -> int:
    """Parse a number that was read from a file.

    :param path: the file, to be named in the error
    :raises TopologyError: it is not a number, or is above ``maximum``
    """
    if not is_number(digits) or int(digits) > maximum:
        raise TopologyError(
            '%s: %a is not a number up to %d' % (os.path.join(root, path), digits[:40], maximum)
        )
    return int(digits)


def read_integer(root: str, path: str) -> int | None:
    """Read a file that holds one number.

    :returns: the number, or None if there is no such file
    :raises TopologyError: the file does not hold a number, or one above :data:`KERNEL_NUMBER_MAX`
    """
    text = read_text(root, path)
    return None if text is None else parse_integer(root, path, text, KERNEL_NUMBER_MAX)


def read_meminfo_bytes(root: str, path: str, wanted: Container[str]) -> dict[str, int] | None:
    """Read the wanted fields of a meminfo file ('Node 0 MemTotal:  1024 kB').

    :returns: {field: bytes}, or None if there is no such file
    :raises TopologyError: the file cannot be read or understood
    """
    text = read_text(root, path)
    if text is None:
        return None
    fields = {}
    for line in text.splitlines():
        name, colon, value = line.partition(':')
        name = name.rpartition(' ')[2]
        if not colon or name not in wanted:
            continue
        digits, _, unit = value.strip().partition(' ')
        if unit != 'kB':
            raise TopologyError('%s: %a is not in kB' % (os.path.join(root, path), line[:80]))
        fields[name] = parse_integer(root, path, digits, KERNEL_NUMBER_MAX) << 10
    return fields


def read_boot_id(root: str = '/') -> str:
    """Read the id that the kernel has given to this boot.

    :raises StateError: the id cannot be read
    """
    path = 'proc/sys/kernel/random/boot_id'
    try:
        boot_id = read_text(root, path)
    except TopologyError as error:
        raise StateError(str(error)) from None
    if not boot_id:
        raise StateError('%s: the boot ID is missing: mount procfs' % os.path.join(root, path))
    return boot_id


def boottime_ns() -> int:
    """Return the time since boot, including suspends: CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def replace_file(
    path: str,
    data: bytes,
    temporary: str,
    mode: int = 0o644,
    durable: bool = True,
    directory_fd: int | None = None,
) -> None:
    """Replace a file atomically by one with new contents.

    :param temporary: path of a temporary file in the same directory, which only one writer may
        use at a time; an existing file there is removed
    :param mode: mode of the file, whatever the umask
    :param durable: write the contents to disk first, so that after a crash of the host the file
        has the old or the new ones
    :param directory_fd: descriptor of the directory that both paths are relative to
    :raises OSError: the file could not be replaced; the next call removes the temporary file
    """
    try:
        os.unlink(temporary, dir_fd=directory_fd)
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fchmod(fd, mode)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
