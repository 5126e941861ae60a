# SPDX-License-Identifier: Apache-2.0
"""Collect the elements in use from a domain's XML, within bounds.

On expat itself: importing ``xml.etree`` costs the hook more than all of its
own work, and builds a tree of everything. No document type is accepted, hence
no entities and nothing external; size (and with it attributes and texts), depth
and number of elements are bounded; a declared encoding is ignored, as it could
name any Python codec.
"""

from __future__ import annotations

import pyexpat

from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

    #: The elements in use, by their paths.
    Elements = Mapping[str, list['Element']]
    #: Elements that may be below one, by their names.
    _Tree = dict[str, '_Tree']

#: The largest of libvirt's own test documents has 30 KB; a guest with 300 disks has 400.
SIZE_MAX_BYTES = 2 << 20
#: Disks nest two levels for each image in their backing chain; libvirt accepts chains of 200.
DEPTH_MAX = 512
ELEMENTS_MAX = 200_000


class Element(Record):
    """One element: its attributes, and its text."""

    attributes: dict[str, str]
    text: str


_SOURCE_ADDRESS: _Tree = {'source': {'address': {}}}
#: The images of a disk beside its own: those below it in its chain, what it is copied to, where
#: a qcow2 keeps its data. Each may have all of them in turn; they are all at one path.
_IMAGES = frozenset(('backingStore', 'mirror', 'dataStore'))
_IMAGE: _Tree = {'source': {'address': {}}}
_IMAGE.update((name, _IMAGE) for name in _IMAGES)
_IMAGE['source'].update((name, _IMAGE) for name in _IMAGES)

_FLAVOR: _Tree = {'flavor': {'extraSpecs': {'extraSpec': {}}}}


def _nova(tree: _Tree, version: str) -> _Tree:
    """Return a tree of plain names as expat names them in Nova's namespace."""
    prefix = 'http://openstack.org/xmlns/libvirt/nova/%s ' % version
    return {prefix + name: _nova(below, version) for name, below in tree.items()}


#: The path of all those images.
IMAGES = 'devices/disk/backingStore'
#: The sizes of memory devices are below this path at their model's: '…/nvdimm'.
MEMORY_SIZES = 'devices/memory/target/size'

_DOMAIN: _Tree = {
    'uuid': {},
    'name': {},
    'memory': {},
    'maxMemory': {},
    'vcpu': {},
    'iothreads': {},
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

# libvirt reads the first of these and ignores the others: with two, what it does and what we
# believe could be made to differ.
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
        'devices',
        'metadata',
        'metadata/instance',
        'metadata/instance/flavor',
    )
)

# libvirt reads the text of an element with that of all below it (XPath's string()); it writes
# nothing there.
_TEXTS = frozenset(
    (
        'uuid',
        'name',
        'memory',
        'maxMemory',
        'vcpu',
        'iothreads',
        'devices/memory/source/nodemask',
        MEMORY_SIZES,
        'metadata/instance/flavor/extraSpecs/extraSpec',
    )
)


class _Collector:
    """Expat's handlers: walks the tree of known elements, counts in all others."""

    def __init__(self, tree: _Tree) -> None:
        self.by_path: dict[str, list[Element]] = {}
        self.elements = 0
        self.unknown_depth = 0
        # One entry for each open known element: (children known below it, path, attributes).
        self.open: list[tuple[_Tree, str, dict[str, str]]] = [(tree, '', {})]
        self.texts: list[list[str]] = [[]]
        #: The entry of the memory device whose size was found last.
        self.sized: tuple[_Tree, str, dict[str, str]] | None = None

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if self.elements > ELEMENTS_MAX:
            raise DomainError('more than %d elements' % ELEMENTS_MAX)
        known, path, _ = self.open[-1]
        if len(self.open) + self.unknown_depth > DEPTH_MAX:
            raise DomainError('elements nest deeper than %d' % DEPTH_MAX)
        if self.unknown_depth or name not in known:
            if path in _TEXTS:
                raise DomainError('<%s> has elements where its text belongs' % path)
            self.unknown_depth += 1
            return
        self.open.append((known[name], _join(path, name), attributes))
        self.texts.append([])

    def text(self, text: str) -> None:
        if not self.unknown_depth:
            self.texts[-1].append(text)

    def end(self, name: str) -> None:
        if self.unknown_depth:
            self.unknown_depth -= 1
            return
        _, path, attributes = self.open.pop()
        if path == MEMORY_SIZES:
            path = self._by_model(path)
        elements = self.by_path.setdefault(path, [])
        if elements and path in _ONCE:
            raise DomainError('<%s> occurs twice' % path)
        elements.append(Element(attributes, ''.join(self.texts.pop())))

    def _by_model(self, path: str) -> str:
        device = self.open[-2]
        if device is self.sized:
            raise DomainError('<%s> occurs twice' % path)
        self.sized = device
        return '%s/%s' % (path, device[2].get('model', ''))

    def refuse_document_type(self, *_: object) -> None:
        raise DomainError('document types and entities are not accepted')


def _join(path: str, name: str) -> str:
    if name in _IMAGES:
        return IMAGES
    # Paths start below <domain>, so that they are the same in a status file.
    name = name.rpartition(' ')[2]
    return '%s/%s' % (path, name) if path not in ('', 'domain', 'domstatus') else name


def collect(xml: bytes, root: str) -> Elements:
    """Return the elements in use by their paths, in document order.

    Paths are relative to ``<domain>``, without namespaces: 'cputune/vcpupin'. The root elements
    are at 'domain' and, in a status file, 'domstatus'.

    :param root: the root element expected, 'domain' or 'domstatus'
    :raises DomainError: not such a document, malformed or beyond a bound
    """
    if not isinstance(xml, bytes):
        raise DomainError('the XML is not bytes but %s' % type(xml).__name__)
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
            raise DomainError('no <%s> where one belongs' % path)
    return collector.by_path


def attributes(elements: Elements, path: str, name: str) -> list[str]:
    """Return the values of an attribute of all elements at a path."""
    return [
        element.attributes[name]
        for element in elements.get(path, ())
        if name in element.attributes
    ]
