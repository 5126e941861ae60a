# SPDX-License-Identifier: Apache-2.0
"""Check single values from a domain's XML: numbers, sizes, CPU sets, names.

Each function takes text from outside. It returns a value that the rest of the package can trust,
or raises :class:`DomainError` with what is wrong; text quoted in a message is escaped and
truncated.
"""

from __future__ import annotations

from nova_numa_pmc.cpulist import CPUS_MAX, HEX_DIGITS, is_label, is_number, is_one_line
from nova_numa_pmc.exceptions import DomainError

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME_MAX_BYTES = 255
MEMORY_MAX_BYTES = 1 << 60
VCPUS_MAX = 65536
# Limit on the numbers in all sets of one guest together, because lists may overlap and repeat
# without limit: 1,024 vCPUs each pinned to 4,096 CPUs.
LISTED_MAX = 1 << 22
# An item takes as much time as this many numbers.
_ITEM_COST = 16


def parse_uuid(text: str) -> str:
    """Return a uuid in lower case with hyphens, as libvirt and Nova write it."""
    digits = text.strip().lower().replace('-', '')
    if len(digits) != 32 or not set(digits) <= HEX_DIGITS or digits == '0' * 32:
        raise DomainError('%a is not a uuid' % text[:40])
    return '-'.join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def parse_name(text: str) -> str:
    """Return a name if libvirt accepts it and it has no control characters.

    libvirt refuses '/' and line feeds. Spaces of all scripts, and characters that this version of
    Python does not know, are accepted; they are escaped when written to a log or a terminal.
    """
    if not 0 < len(text.encode('utf-8', 'surrogatepass')) <= NAME_MAX_BYTES:
        raise DomainError('the name is not 1 to %d bytes long: %a' % (NAME_MAX_BYTES, text[:40]))
    if '/' in text or text in ('.', '..') or not is_one_line(text):
        raise DomainError('the name has a slash or control characters: %a' % text[:80])
    return text


def parse_integer(what: str, digits: str, minimum: int, maximum: int) -> int:
    """Parse a decimal number within bounds; ``what`` names the value in the error."""
    digits = digits.strip()
    if not (is_number(digits) and minimum <= int(digits) <= maximum):
        raise DomainError(
            '%s: %a is not a number from %d to %d' % (what, digits[:40], minimum, maximum)
        )
    return int(digits)


def parse_size_bytes(what: str, digits: str, unit: str | None) -> int:
    """Convert a scaled integer to bytes as virScaleInteger does; without a unit, it is in KiB."""
    value = parse_integer(what, digits, 1, MEMORY_MAX_BYTES)
    unit = unit or 'KiB'
    if unit.isascii():  # the Kelvin sign would become a 'k' in lower case
        unit = unit.lower()
    if unit in ('b', 'byte', 'bytes'):
        scale = 1
    elif unit[0] in 'kmgtpe' and unit[1:] in ('', 'b', 'ib'):
        scale = (1000 if unit[1:] == 'b' else 1024) ** ('kmgtpe'.index(unit[0]) + 1)
    else:
        raise DomainError('%s: %a is not a unit of memory' % (what, unit[:40]))
    if value * scale > MEMORY_MAX_BYTES:
        raise DomainError('%s: more than %d bytes' % (what, MEMORY_MAX_BYTES))
    return value * scale


def parse_cpuset(what: str, texts: Iterable[str]) -> frozenset[int]:
    """Return the union of sets that :func:`parse_cpusets` parses."""
    union: set[int] = set()
    for _, numbers in parse_cpusets(what, texts):
        union |= numbers
    return frozenset(union)


def parse_cpusets(what: str, texts: Iterable[str]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield (text, its set) of sets in libvirt's syntax, such as '0-3,8' or '0-3,^2'.

    Each distinct text is parsed once. An exclusion applies to the items before it in its own text
    (virBitmapParse).
    """
    cost = 0
    for text in set(texts):
        numbers: set[int] = set()
        for item in text.split(',') if text.strip() else ():
            item_numbers, excluded = _cpu_range(what, item.strip())
            cost += len(item_numbers) + _ITEM_COST
            if cost > LISTED_MAX:
                raise DomainError('%s: lists more than %d CPUs or nodes' % (what, LISTED_MAX))
            if excluded:
                numbers.difference_update(item_numbers)
            else:
                numbers.update(item_numbers)
        yield text, frozenset(numbers)


def _cpu_range(what: str, item: str) -> tuple[range, bool]:
    """Return an item's numbers, and whether it excludes them."""
    excluded = item.startswith('^')
    first, dash, last = item.removeprefix('^').partition('-')
    low = parse_integer(what, first, 0, CPUS_MAX - 1)
    high = parse_integer(what, last, low, CPUS_MAX - 1) if dash else low
    if excluded and dash:
        raise DomainError('%s: %a: only single numbers can be excluded' % (what, item[:40]))
    return range(low, high + 1), excluded


def parse_pci_address(attributes: Mapping[str, str]) -> str:
    """Return an address like '0000:3b:00.1' from the attributes of libvirt's ``<address>``."""
    parts = []
    for name, maximum in (('domain', 0xFFFFFFFF), ('bus', 0xFF), ('slot', 0x1F), ('function', 7)):
        text = attributes.get(name, '0')
        digits = text[2:] if text[:2] in ('0x', '0X') else ''
        if digits and set(digits.lower()) <= HEX_DIGITS and len(digits) <= 8:
            text = str(int(digits, 16))
        parts.append(parse_integer('PCI %s' % name, text, 0, maximum))
    return '%04x:%02x:%02x.%x' % tuple(parts)


def parse_label(what: str, text: str) -> str:
    """Return a text if :func:`is_label` accepts it; such texts go into logs and our own files."""
    if not is_label(text):
        raise DomainError(
            '%s: %a is longer than 255 characters or has control characters' % (what, text[:40])
        )
    return text
