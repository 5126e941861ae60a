# SPDX-License-Identifier: Apache-2.0
"""Collect the elements in use from a domain's XML, within bounds.

Expat is used directly, because importing ``xml.etree`` would cost the hook more than all of its
own work and would build a tree of the whole document. Document types are refused, and with them
entities and anything external. Size (and with it attributes and texts), depth and number of
elements are bounded. A declared encoding is ignored, because it could name any Python codec.
"""

from __future__ import annotations

import pyexpat

from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

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
#: Path of the sizes of memory devices, to which the device's model is appended: '…/nvdimm'.
MEMORY_SIZES = 'devices/memory/target/size'

_DOMAIN: _Tree = {
    'uuid': {},
    'name': {},
    'memory': {},
    'maxMemory': {},
    'vcpu': {},
    'iothreads': {},
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
        'interface': {**_SOURCE_ADDRESS, 'actual': _SOURCE_ADDRESS},
        'disk': _IMAGE,
        'memory': {'source': {'nodemask': {}}, 'target': {'size': {}}},
    },
    'metadata': {**_nova({'instance': _FLAVOR}, '1.0'), **_nova({'instance': _FLAVOR}, '1.1')},
}

_ROOTS: dict[str, _Tree] = {
    'domain': {'domain': _DOMAIN},
    'domstatus': {'domstatus': {'numad': {}, 'job': {}, 'vcpus': {'vcpu': {}}, 'domain': _DOMAIN}},
}

# libvirt reads the first of these and ignores any others. If a second one were accepted, it could
# be used to make us believe something other than what libvirt does.
_ONCE = frozenset(
    (
        'domain',
        'numad',
        'job',
        'uuid',
        'name',
        'memory',
        'maxMemory',
        'vcpu',
        'iothreads',
        'numatune',
        'numatune/memory',
        'cputune',
        'cputune/emulatorpin',
        'memoryBacking',
        'memoryBacking/hugepages',
        'memoryBacking/allocation',
        'launchSecurity',
        'resource',
        'resource/partition',
        'devices',
        'metadata',
        'metadata/instance',
        'metadata/instance/flavor',
    )
)

# libvirt reads the text of an element together with that of all elements below it (XPath's
# string()), but writes no elements there itself.
_TEXTS = frozenset(
    (
        'uuid',
        'name',
        'memory',
        'maxMemory',
        'vcpu',
        'iothreads',
        'resource/partition',
        'devices/memory/source/nodemask',
        MEMORY_SIZES,
        'metadata/instance/flavor/extraSpecs/extraSpec',
    )
)


class _Collector:
    """Expat handlers that collect the known elements, and only count the others."""

    def __init__(self, tree: _Tree) -> None:
        self.by_path: dict[str, list[Element]] = {}
        self.elements = 0
        self.unknown_depth = 0
        # For each known element that is open: (known children, path, attributes, children).
        self.open: list[_Open] = [(tree, '', {}, {})]
        self.texts: list[list[str]] = [[]]
        #: The entry of the memory device whose size was read last.
        self.sized_device: _Open | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > ELEMENTS_MAX:
            raise DomainError('more than %d elements' % ELEMENTS_MAX)
        known_children, path, *_ = self.open[-1]
        if len(self.open) + self.unknown_depth > DEPTH_MAX:
            raise DomainError('elements nest deeper than %d' % DEPTH_MAX)
        if self.unknown_depth or name not in known_children:
            if path in _TEXTS:
                raise DomainError('<%s> has elements where its text belongs' % path)
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
        if path == MEMORY_SIZES:
            path = self._path_with_model(path)
        elements = self.by_path.setdefault(path, [])
        if elements and path in _ONCE:
            raise DomainError('<%s> occurs twice' % path)
        element = Element(attributes, ''.join(self.texts.pop()), children)
        elements.append(element)
        self.open[-1][3].setdefault(name, element)

    def _path_with_model(self, path: str) -> str:
        device = self.open[-2]
        if device is self.sized_device:
            raise DomainError('<%s> occurs twice' % path)
        self.sized_device = device
        return '%s/%s' % (path, device[2].get('model', ''))

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
