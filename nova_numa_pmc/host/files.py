# SPDX-License-Identifier: Apache-2.0
"""Read small sysfs and procfs files as text, numbers or CPU lists; replace files atomically.

Also which boot of the host this is, and its clock.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

import errno
import os
import time

from nova_numa_pmc.cpulist import BLANK, is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, StateError, TopologyError

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Container

    #: Of a file: device, inode, times of its last change and of its status' [ns], size [bytes].
    Identity = tuple[int, int, int, int, int]

#: The kernel's directories of nodes and CPUs, below the root.
NODES, CPUS = 'sys/devices/system/node', 'sys/devices/system/cpu'
#: libvirt's directory of hooks, below the root, and our script in that.
HOOKS, OUR_HOOK = 'etc/libvirt/hooks', 'qemu.d/50-nova-numa-pmc'
#: More pages, or KiB, than any host has.
AMOUNT_MAX = 1 << 50
#: No kernel file read here comes near it; a bound for what a test or a bind mount puts there.
_READ_MAX_BYTES = 1 << 20


def read_cpus(root: str, path: str) -> frozenset[int] | None:
    """Return the set of CPUs (or nodes) in a list file, None without the file.

    :raises TopologyError: the file cannot be read or understood
    """
    text = read_text(root, path)
    # Kernels with nohz_full built in but not used print a null mask.
    if text is None or text == '(null)':
        return None if text is None else frozenset()
    try:
        return parse_cpulist(text)
    except CpuListError as error:
        raise TopologyError('%s: %s' % (path_of(root, path), error)) from error


def read_text(root: str, path: str) -> str | None:
    """Return a small file's text, stripped; None if the kernel has no such file (any more).

    :raises TopologyError: the file cannot be read
    """
    path = path_of(root, path)
    try:
        # A third of open()'s time, which counts with hundreds of files in the hook.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # sysfs files are a page at most, but lists of CPUs and proc files may be longer.
            text = os.read(descriptor, 1 << 16)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TopologyError('%s: %s' % (path, error.strerror)) from error
    return text.decode('ascii', 'backslashreplace').strip(BLANK)


def read_kernel_file(path: str) -> str:
    """Read a kernel file to its end; kernfs may return it in parts.

    :raises OSError: as the kernel says; EFBIG above 1 MiB
    """
    return os.fsdecode(_read_bytes(path))


def read_optional(root: str, path: str) -> str | None:
    """Return a kernel file's text, stripped; None where it cannot be read."""
    try:
        return _read_bytes(path_of(root, path)).decode('utf-8', 'replace').strip(BLANK)
    except OSError:
        return None


def _read_bytes(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        parts: list[bytes] = []
        size = 0
        while True:
            part = os.read(fd, 65536)
            if not part:
                return b''.join(parts)
            parts.append(part)
            size += len(part)
            if size > _READ_MAX_BYTES:
                raise OSError(errno.EFBIG, 'larger than 1 MiB', path)
    finally:
        os.close(fd)


def identity(path: str) -> Identity:
    """Return a file's identity, which changes whenever it is changed or replaced.

    :raises OSError: it cannot be looked at
    """
    status = os.stat(path)
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def start_ticks(stat: str) -> int:
    """Return the start of a process or thread [ticks since boot], from the text of its stat.

    Field 22 of proc(5)'s; the second, a name, may contain spaces and parentheses.

    :raises ValueError, IndexError: it has none
    """
    return int(stat.rpartition(')')[2].split()[19])


def has_capability(root: str, process: str, number: int) -> bool | None:
    """Return whether a process ('self', or a pid) has a capability; None: not reported.

    :param number: of linux/capability.h
    """
    for line in (read_optional(root, 'proc/%s/status' % process) or '').splitlines():
        name, _, digits = line.partition(':')
        if name == 'CapEff':
            try:
                return bool(int(digits, 16) >> number & 1)
            except ValueError:
                return None
    return None


def list_pids(root: str) -> list[int]:
    """List the ids of processes, ascending; none where procfs cannot be listed."""
    try:
        return sorted(int(name) for name in os.listdir(path_of(root, 'proc')) if name.isdigit())
    except OSError:
        return []


def whole_number(root: str, path: str, digits: str, maximum: int) -> int:
    """Parse a number read from a file.

    :param path: of the file, for the error
    :raises TopologyError: not a number, or above ``maximum``
    """
    if not is_number(digits) or int(digits) > maximum:
        raise TopologyError(
            '%s: %a is not a number up to %d' % (path_of(root, path), digits[:40], maximum)
        )
    return int(digits)


def read_whole_number(root: str, path: str, maximum: int) -> int | None:
    """Read a file that holds one number.

    :returns: None without the file
    :raises TopologyError: not a number, or above ``maximum``
    """
    text = read_text(root, path)
    return None if text is None else whole_number(root, path, text, maximum)


def meminfo_bytes(root: str, path: str, wanted: Container[str]) -> dict[str, int] | None:
    """Return {field: bytes} of a meminfo's wanted fields ('Node 0 MemTotal:  1024 kB').

    :returns: None without the file
    :raises TopologyError: it cannot be read or understood
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
            raise TopologyError('%s: %a is not in kB' % (path_of(root, path), line[:80]))
        fields[name] = whole_number(root, path, digits, AMOUNT_MAX) << 10
    return fields


def read_boot_id(root: str = '/') -> str:
    """Read the id that the kernel gave this boot.

    :raises StateError: it cannot be read
    """
    path = 'proc/sys/kernel/random/boot_id'
    try:
        boot_id = read_text(root, path)
    except TopologyError as error:
        raise StateError(str(error)) from None
    if not boot_id:
        raise StateError('%s: the boot ID is missing: mount procfs' % path_of(root, path))
    return boot_id


def boottime_ns() -> int:
    """Return the time since this boot, suspends included: CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def replace_file(
    path: str,
    data: bytes,
    temporary: str,
    mode: int = 0o644,
    durable: bool = True,
    directory_fd: int | None = None,
) -> None:
    """Put new bytes in a file's place in one step.

    :param temporary: name of a temporary file beside it, for one writer at a time; any file there
        is removed
    :param mode: of the file, whatever the umask
    :param durable: make it survive a crash of the host, which nothing on a tmpfs does
    :param directory_fd: of the directory that both paths are relative to
    :raises OSError: as the kernel says
    """
    try:
        os.unlink(temporary, dir_fd=directory_fd)
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        try:
            os.unlink(temporary, dir_fd=directory_fd)
        except OSError:
            pass  # the original error says more
        raise


def path_of(root: str, path: str) -> str:
    """Return a file's path below the root."""
    return os.path.join(root, path)
