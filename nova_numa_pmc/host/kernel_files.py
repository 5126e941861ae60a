# SPDX-License-Identifier: Apache-2.0
"""Read small files of sysfs and procfs: texts, numbers, lists of CPUs or nodes.

Imported by the libvirt hook at every guest start: light modules only.
"""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import CpuListError, TopologyError

TYPE_CHECKING = False  # not typing's, which is dear to import

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Highest CPU or node number accepted plus one: libvirt's VIR_DOMAIN_CPUMASK_LEN,
#: twice what the largest kernels are built for.
MAX_CPUS = 16384

#: What may surround a list. RHEL 7's ``nohz_full`` and a node's ``cpulist`` of early 5.15 on Arm
#: have a NUL at their end.
_BLANK = ' \t\n\r\v\f\0'


def parse_cpulist(text: str) -> frozenset[int]:
    """Turn the kernel's list format ('0-3,8') into a frozenset of ints.

    Surrounding white space and NULs are ignored; an empty list is an empty set.

    :raises CpuListError: on anything but ascending ranges of numbers below
        :data:`MAX_CPUS`
    """
    text = text.strip(_BLANK)
    if not text:
        return frozenset()
    numbers: list[int] = []
    previous = -1
    for item in text.split(','):
        first, dash, last = item.partition('-')
        low = _list_number(first, item)
        high = _list_number(last, item) if dash else low
        if not previous < low <= high:
            raise CpuListError(f'{item[:40]!a} does not ascend')
        numbers += range(low, high + 1)
        previous = high
    return frozenset(numbers)


def _list_number(digits: str, item: str) -> int:
    # str.isdigit alone takes other scripts' digits, and int() takes '_', '+' and spaces.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise CpuListError(f'{item[:40]!a} is no number and no range')
    number = int(digits)
    if number >= MAX_CPUS:
        raise CpuListError(f'{item[:40]!a} is beyond the highest number accepted, {MAX_CPUS - 1}')
    return number


def format_cpulist(numbers: Iterable[int]) -> str:
    """Turn a set of ints into the kernel's list format, ascending and in the fewest ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ','.join(str(low) if low == high else f'{low}-{high}' for low, high in ranges)


def read_cpus(root: str, path: str) -> frozenset[int] | None:
    """Return the set of CPUs (or nodes) in a list file, None without the file.

    :raises TopologyError: the file can't be read or understood
    """
    text = read_text(root, path)
    # Kernels with nohz_full built in but not used print a null mask.
    if text is None or text == '(null)':
        return None if text is None else frozenset()
    try:
        return parse_cpulist(text)
    except CpuListError as error:
        raise TopologyError(f'{path_of(root, path)}: {error}') from error


def read_text(root: str, path: str) -> str | None:
    """Return a small file's text, stripped; None if the kernel has no such file (any more).

    :raises TopologyError: the file can't be read
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
        raise TopologyError(f'{path}: {error.strerror}') from error
    return text.decode('ascii', 'backslashreplace').strip(_BLANK)


def whole_number(root: str, path: str, digits: str, most: int) -> int:
    """Return the number that a file's digits are.

    :param path: of the file, for the error
    :raises TopologyError: they are none, or it is above ``most``
    """
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or int(digits) > most:
        raise TopologyError(f'{path_of(root, path)}: {digits[:40]!a} is no number up to {most}')
    return int(digits)


def path_of(root: str, path: str) -> str:
    """Return a file's path below the root."""
    return os.path.join(root, path)
