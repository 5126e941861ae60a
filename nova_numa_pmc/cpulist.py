# SPDX-License-Identifier: Apache-2.0
"""Parse and format lists of CPUs and nodes as the kernel does, such as '0-3,8'.

The module also has the checks of numbers and names that several packages share. The libvirt hook
imports it at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.exceptions import CpuListError
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: One more than the highest CPU or node number accepted: libvirt's VIR_DOMAIN_CPUMASK_LEN,
#: twice the number of CPUs that the largest kernels are built for.
CPUS_MAX = 16384

#: Characters that may surround a list. RHEL 7's ``nohz_full``, and a node's ``cpulist`` in early
#: 5.15 kernels on Arm, end in a NUL.
BLANK = ' \t\n\r\v\f\0'

HEX_DIGITS = frozenset('0123456789abcdef')

#: Control characters, line separators and overrides of the writing direction: all characters that
#: could split text into lines or make it look like other text. Any other character that this
#: version of Python considers unprintable may be next year's emoji.
_NOT_IN_NAMES = frozenset(
    map(chr, (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)))
)


def is_number(text: str, max_length: int = 19) -> bool:
    """Return whether the text consists of 1 to ``max_length`` decimal digits.

    ``str.isdigit`` also accepts digits of other scripts, and ``int`` accepts '_', '+' and spaces.
    """
    return len(text) <= max_length and text.isascii() and text.isdigit()


def is_one_line(text: str) -> bool:
    """Return whether no character ends a line, controls a terminal or is half of a surrogate."""
    return text.isprintable() or (
        _NOT_IN_NAMES.isdisjoint(text)
        and not any('\ud800' <= character <= '\udfff' for character in text)
    )


def is_label(text: str) -> bool:
    """Return whether a text has at most 255 characters, none of which ends a line."""
    return len(text) <= 255 and is_one_line(text)


def parse_cpulist(text: str) -> frozenset[int]:
    """Parse a list in the kernel's format, such as '0-3,8'.

    White space and NULs around the list are ignored; an empty list yields an empty set.

    :raises CpuListError: on anything but ascending ranges of numbers below
        :data:`CPUS_MAX`
    """
    text = text.strip(BLANK)
    if not text:
        return frozenset()
    numbers: list[int] = []
    previous = -1
    for item in text.split(','):
        first, dash, last = item.partition('-')
        low = _list_number(first, item)
        high = _list_number(last, item) if dash else low
        if not previous < low <= high:
            raise CpuListError('%a is not in ascending order' % item[:40])
        numbers += range(low, high + 1)
        previous = high
    return frozenset(numbers)


def _list_number(digits: str, item: str) -> int:
    if not is_number(digits, 9):
        raise CpuListError('%a is neither a number nor a range' % item[:40])
    number = int(digits)
    if number >= CPUS_MAX:
        raise CpuListError(
            '%a is beyond the highest number accepted, %d' % (item[:40], CPUS_MAX - 1)
        )
    return number


def format_cpulist(numbers: Iterable[int]) -> str:
    """Format numbers as a list in the kernel's format, ascending and in the fewest ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ','.join(str(low) if low == high else '%d-%d' % (low, high) for low, high in ranges)


def format_nodes(ids: Iterable[int]) -> str:
    """Format node ids for a message, such as '0,1', in the order given and without ranges."""
    return ','.join(map(str, ids))


def name_nodes(ids: Collection[int]) -> str:
    """Return 'node 0', 'nodes 0,1' or, if there are no ids, 'any node'."""
    if not ids:
        return 'any node'
    return ('node ' if len(ids) == 1 else 'nodes ') + format_nodes(ids)
