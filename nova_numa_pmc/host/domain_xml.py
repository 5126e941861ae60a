# SPDX-License-Identifier: Apache-2.0
"""Read a domain's XML: its elements in use, within bounds, and the values in them, checked.

Expat is used directly, because importing ``xml.etree`` would cost the hook more than all of its
own work and would build a tree of the whole document. Document types are refused, and with them
entities and anything external. Size (and with it attributes and texts), depth and number of
elements are bounded. A declared encoding is ignored, because it could name any Python codec.

The functions that parse values take text from outside. Each returns a value that the rest of the
package can trust, or raises :class:`DomainError` with what is wrong; text quoted in a message is
escaped and truncated.
"""

from __future__ import annotations

import os
import pyexpat

from nova_numa_pmc.cpulist import HEX_DIGITS, is_label, is_number, is_one_line, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, DomainError
from nova_numa_pmc.model import INTERLEAVE
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nova_numa_pmc.model import Guest

    #: The elements in use, by path.
    Elements = Mapping[str, list['Element']]
    #: The elements that are known below an element, by name.
    _Tree = dict[str, '_Tree']
    _Open = tuple[_Tree, str, dict[str, str], dict[str, 'Element']]


#: The largest of libvirt's own test documents has 30 KB, that of a guest with 300 disks 400 KB.
SIZE_MAX_BYTES = 2 << 20
#: Disks nest two levels for each image in their backing chain; libvirt accepts chains of 200.
DEPTH_MAX = 512
ELEMENTS_MAX = 200_000


class Element(Record):
    """An element's attributes, its text, and the first of its known children of each name."""

    attributes: dict[str, str]
    text: str
    children: Mapping[str, Element]


_SOURCE_ADDRESS: _Tree = {'source': {'address': {}}}
#: Elements for the images of a disk other than its own: those below it in its backing chain, the
#: copy that is made of it, and the file in which a qcow2 image keeps its data. Each can contain
#: all of these in turn; they all have the same path.
_IMAGES = frozenset(('backingStore', 'mirror', 'dataStore'))
_IMAGE: _Tree = {'source': {'address': {}}}
_IMAGE.update((name, _IMAGE) for name in _IMAGES)
_IMAGE['source'].update((name, _IMAGE) for name in _IMAGES)

_FLAVOR: _Tree = {'flavor': {'extraSpecs': {'extraSpec': {}}}}


def _nova(tree: _Tree, version: str) -> _Tree:
    """Return a tree with its names in Nova's namespace, as expat writes them."""
    prefix = 'http://openstack.org/xmlns/libvirt/nova/%s ' % version
    return {prefix + name: _nova(below, version) for name, below in tree.items()}


#: Path of all of those images.
IMAGES = 'devices/disk/backingStore'
_DOMAIN: _Tree = {
    'uuid': {},
    'name': {},
    'memory': {},
    'maxMemory': {},
    'vcpu': {},
    'resource': {'partition': {}},
    'numatune': {'memory': {}, 'memnode': {}},
    'cputune': {
        'vcpupin': {},
        'emulatorpin': {},
        'iothreadpin': {},
        'cachetune': {},
        'memorytune': {},
    },
    'memoryBacking': {'hugepages': {'page': {}}, 'locked': {}, 'allocation': {}},
    'launchSecurity': {},
    'devices': {
        'hostdev': _SOURCE_ADDRESS,
        'interface': {**_SOURCE_ADDRESS, 'actual': _SOURCE_ADDRESS, 'model': {}},
        'disk': {**_IMAGE, 'target': {}},
        'memory': {'source': {'nodemask': {}}, 'target': {'size': {}}},
    },
    'metadata': {**_nova({'instance': _FLAVOR}, '1.0'), **_nova({'instance': _FLAVOR}, '1.1')},
}

_ROOTS: dict[str, _Tree] = {
    'domain': {'domain': _DOMAIN},
    'domstatus': {'domstatus': {'job': {}, 'vcpus': {'vcpu': {}}, 'domain': _DOMAIN}},
}


class _Collector:
    """Expat handlers that collect the known elements, and only count the others."""

    def __init__(self, tree: _Tree) -> None:
        self.by_path: dict[str, list[Element]] = {}
        self.elements = 0
        self.unknown_depth = 0
        # For each known element that is open: (known children, path, attributes, children).
        self.open: list[_Open] = [(tree, '', {}, {})]
        self.texts: list[list[str]] = [[]]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > ELEMENTS_MAX:
            raise DomainError('more than %d elements' % ELEMENTS_MAX)
        known_children, path, *_ = self.open[-1]
        if len(self.open) + self.unknown_depth > DEPTH_MAX:
            raise DomainError('elements nest deeper than %d' % DEPTH_MAX)
        if self.unknown_depth or name not in known_children:
            self.unknown_depth += 1
            return
        self.open.append((known_children[name], _join(path, name), attributes, {}))
        self.texts.append([])

    def text(self, text: str) -> None:
        if not self.unknown_depth:
            self.texts[-1].append(text)

    def end(self, name: str) -> None:
        if self.unknown_depth:
            self.unknown_depth -= 1
            return
        _, path, attributes, children = self.open.pop()
        element = Element(attributes, ''.join(self.texts.pop()), children)
        self.by_path.setdefault(path, []).append(element)
        self.open[-1][3].setdefault(name, element)

    def refuse_document_type(self, *_: object) -> None:
        raise DomainError('document types and entities are not accepted')


def _join(path: str, name: str) -> str:
    if name in _IMAGES:
        return IMAGES
    # Paths begin below <domain>, so that they are the same in a status file.
    name = name.rpartition(' ')[2]
    return '%s/%s' % (path, name) if path not in ('', 'domain', 'domstatus') else name


def collect(xml: bytes, root: str) -> Elements:
    """Return the elements in use by path, in document order.

    Paths are relative to ``<domain>`` and without namespaces, such as 'cputune/vcpupin'. The root
    elements have the paths 'domain' and, in a status file, 'domstatus'.

    :param root: the expected root element, 'domain' or 'domstatus'
    :raises DomainError: the document has another root element, is malformed or exceeds a bound
    """
    if len(xml) > SIZE_MAX_BYTES:
        raise DomainError('the XML is larger than %d bytes' % SIZE_MAX_BYTES)
    collector = _Collector(_ROOTS[root])
    parser = pyexpat.ParserCreate('utf-8', ' ')
    parser.buffer_text = True
    parser.StartElementHandler = collector.start
    parser.EndElementHandler = collector.end
    parser.CharacterDataHandler = collector.text
    parser.StartDoctypeDeclHandler = collector.refuse_document_type
    parser.EntityDeclHandler = collector.refuse_document_type
    try:
        parser.Parse(xml, True)
    except pyexpat.ExpatError as error:
        raise DomainError('the XML is not well-formed: %s' % error) from error
    for path in (root, 'domain'):
        if path not in collector.by_path:
            raise DomainError('the XML has no <%s> where it is expected' % path)
    return collector.by_path


def attribute_values(elements: Elements, path: str, name: str) -> list[str]:
    """Return the values of an attribute of those elements at a path that have it."""
    return [
        element.attributes[name]
        for element in elements.get(path, ())
        if name in element.attributes
    ]


NAME_MAX_BYTES = 255
MEMORY_MAX_BYTES = 1 << 60
VCPUS_MAX = 65536
# Limit on the numbers in all sets of one guest together: 1,024 vCPUs each pinned to 4,096 CPUs.
LISTED_MAX = 1 << 22


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
    """Convert a size to bytes; libvirt writes all sizes in KiB (virDomainDefFormat)."""
    if unit not in (None, 'KiB'):
        raise DomainError('%s: %a is not a unit that libvirt writes' % (what, unit[:40]))
    return parse_integer(what, digits, 1, MEMORY_MAX_BYTES >> 10) << 10


def parse_cpuset(what: str, texts: Iterable[str]) -> frozenset[int]:
    """Return the union of sets that :func:`parse_cpusets` parses."""
    union: set[int] = set()
    for _, numbers in parse_cpusets(what, texts):
        union |= numbers
    return frozenset(union)


def parse_cpusets(what: str, texts: Iterable[str]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield (text, its set) of sets as libvirt writes them, such as '0-3,8' (virBitmapFormat).

    Each distinct text is parsed once.
    """
    cost = 0
    for text in set(texts):
        try:
            numbers = parse_cpulist(text)
        except CpuListError as error:
            raise DomainError('%s: %s' % (what, error)) from None
        cost += len(numbers)
        if cost > LISTED_MAX:
            raise DomainError('%s: lists more than %d CPUs or nodes' % (what, LISTED_MAX))
        yield text, numbers


def parse_pci_address(attributes: Mapping[str, str]) -> str:
    """Return an address like '0000:3b:00.1' from the attributes of libvirt's ``<address>``."""
    parts = []
    for name, maximum in (('domain', 0xFFFFFFFF), ('bus', 0xFF), ('slot', 0x1F), ('function', 7)):
        digits = attributes.get(name, '0').removeprefix('0x').lower()
        is_hex = 0 < len(digits) <= 8 and set(digits) <= HEX_DIGITS
        if not is_hex or int(digits, 16) > maximum:
            raise DomainError('PCI %s: %a is not an address' % (name, digits[:40]))
        parts.append(int(digits, 16))
    return '%04x:%02x:%02x.%x' % tuple(parts)


def parse_label(what: str, text: str) -> str:
    """Return a text if :func:`is_label` accepts it; such texts go into logs and our own files."""
    if not is_label(text):
        raise DomainError(
            '%s: %a is longer than 255 characters or has control characters' % (what, text[:40])
        )
    return text


#: Memory devices that are backed by a device, a file or memory reserved by the CPU (SGX), and not
#: by the host's RAM. libvirt counts them in <memory> (virDomainDefPostParseMemory in its
#: src/conf/domain_postparse.c), and Nova in <maxMemory> (_guest_add_vpmems in its
#: nova/virt/libvirt/driver.py).
_NOT_RAM = ('nvdimm', 'virtio-pmem', 'sgx-epc')

#: If this size is requested, libvirt uses no huge pages (qemuBuildMemoryGetPagesize in its
#: src/qemu/qemu_command.c).
_BASE_PAGE_BYTES = os.sysconf('SC_PAGESIZE')
#: Page size that is assumed of a ``<hugepages/>`` that names none. It is the kernel's default:
#: unless it was booted with another, 2 MiB on x86 and on arm64 with base pages of 4 KiB, but 512
#: MiB on arm64 with base pages of 64 KiB. Nova always names the size.
_DEFAULT_HUGE_PAGE_BYTES = 2 << 20


def ram_sizes_bytes(elements: Elements) -> tuple[int, int | None]:
    """Return the RAM that is plugged now and the RAM that a guest may grow to [bytes].

    The second is None if it equals the first. ``<currentMemory>``, the balloon's current size, is
    not considered, because the guest may take back the rest at any time.

    :raises DomainError: there is no ``<memory>``, or a size is malformed
    """
    if 'memory' not in elements:
        raise DomainError('<domain> has no <memory>')
    plugged_bytes = _size_bytes(elements, 'memory')
    total_max_bytes = max(
        plugged_bytes, _size_bytes(elements, 'maxMemory') if 'maxMemory' in elements else 0
    )
    not_ram_bytes = _not_ram_bytes(elements)
    if not_ram_bytes >= plugged_bytes:
        raise DomainError('memory: memory devices account for all of it, which leaves no RAM')
    return (
        plugged_bytes - not_ram_bytes,
        None if total_max_bytes == plugged_bytes else total_max_bytes - not_ram_bytes,
    )


def _size_bytes(elements: Elements, path: str) -> int:
    element = elements[path][0]
    return parse_size_bytes(path, element.text, element.attributes.get('unit'))


def _not_ram_bytes(elements: Elements) -> int:
    sizes = [
        device.children['target'].children['size']
        for device in elements.get('devices/memory', ())
        if device.attributes.get('model') in _NOT_RAM
        and 'target' in device.children
        and 'size' in device.children['target'].children
    ]
    return sum(
        parse_size_bytes('memory device', size.text, size.attributes.get('unit')) for size in sizes
    )


def page_bytes(elements: Elements) -> int | None:
    """Return the largest size of the huge pages that back the guest, or None for normal pages.

    :raises DomainError: a size is malformed
    """
    if 'memoryBacking/hugepages' not in elements:
        return None
    pages = elements.get('memoryBacking/hugepages/page', ())
    if not pages:
        return _DEFAULT_HUGE_PAGE_BYTES
    largest_bytes = max(
        parse_size_bytes(
            'hugepages', element.attributes.get('size', ''), element.attributes.get('unit')
        )
        for element in pages
    )
    return largest_bytes if largest_bytes > _BASE_PAGE_BYTES else None


def is_locked(elements: Elements) -> bool:
    """Return whether the XML locks the guest's memory in place, other than by devices."""
    # Memory encryption (SEV, TDX, s390-pv) ties a page's contents to its address or leaves the
    # page to the firmware.
    return 'memoryBacking/locked' in elements or 'launchSecurity' in elements


#: The elements of ``<cputune>``, by the prefix of the names of the threads' control groups.
ELEMENTS = {'vcpu': 'vcpupin', 'emulator': 'emulatorpin', 'iothread': 'iothreadpin'}


def pin_element(name: str) -> str:
    """Return the element of ``<cputune>`` that pins the control group with this name ('vcpu0')."""
    return ELEMENTS[name.rstrip('0123456789')]


def without_full_pins(guest: Guest, online: frozenset[int]) -> Guest:
    """Return the guest without pins to every CPU that it may use.

    ``virsh vcpupin GUEST N r`` leaves such pins behind, because libvirt does not remove a pin from
    a running guest's XML.

    :param online: the host's online CPUs; if empty, they are not known, and every pin counts
    """
    wide = online if guest.limit_cpus is None else guest.limit_cpus & online
    remaining = tuple(pin for pin in guest.pins if not pin[1] >= wide)
    if not wide or remaining == guest.pins:
        return guest
    elements = {pin_element(name) for name, _ in remaining}
    vcpus = [cpus for name, cpus in remaining if name.startswith('vcpu')]
    return guest._replace(
        pins=remaining,
        pinned_cpus=frozenset[int]().union(*vcpus) or None,
        placed_by=tuple(
            code for code in guest.placed_by if code in elements or code not in ELEMENTS.values()
        ),
    )


def without_full_binding(guest: Guest, with_memory: frozenset[int] | None) -> Guest:
    """Return the guest without a ``<numatune>`` that names all nodes and does not interleave them.

    :param with_memory: ids of the nodes that have memory; None: unknown, and every binding counts
    """
    if (
        not guest.mem_mode
        or not with_memory
        or (guest.mem_mode == INTERLEAVE and len(with_memory) > 1)
        or not with_memory <= set(guest.numatune_nodes)
        or {'memnode', 'numad'} & set(guest.placed_by)
    ):
        return guest
    return guest._replace(
        placed_by=tuple(code for code in guest.placed_by if code != 'numatune'),
        numatune_nodes=(),
        mem_mode='',
    )
