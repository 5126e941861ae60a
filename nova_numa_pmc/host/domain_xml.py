# SPDX-License-Identifier: Apache-2.0
"""Collect the elements in use from a domain's XML, within bounds.

On expat itself: importing ``xml.etree`` costs the hook more than all of its
own work, and builds a tree of everything. No document type is accepted, hence
no entities and nothing external; size, depth and number of elements are
bounded; a declared encoding is ignored, as it could name any Python codec.
"""

from __future__ import annotations


import pyexpat

from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.record import Record

MAX_BYTES = 10 << 20
#: Disks nest two levels for each image in their backing chain; libvirt accepts chains of 200.
MAX_DEPTH = 512
MAX_ELEMENTS = 200_000


class Element(Record):
    """One element: its attributes {str: str}, and its text (str)."""

    attributes: dict[str, str]
    text: str


_SOURCE_ADDRESS = {'source': {'address': {}}}

_FLAVOR = {'flavor': {'extraSpecs': {'extraSpec': {}}}}


def _nova(tree, version):
    """Return a tree of plain names as expat names them in Nova's namespace."""
    prefix = f'http://openstack.org/xmlns/libvirt/nova/{version} '
    return {prefix + name: _nova(below, version) for name, below in tree.items()}


_DOMAIN = {
    'uuid': {}, 'name': {}, 'memory': {}, 'maxMemory': {}, 'vcpu': {}, 'iothreads': {},
    'numatune': {'memory': {}, 'memnode': {}},
    'cputune': {'vcpupin': {}, 'emulatorpin': {}, 'iothreadpin': {}, 'cachetune': {},
                'memorytune': {}},
    'memoryBacking': {'hugepages': {'page': {}}, 'locked': {}, 'allocation': {}},
    'launchSecurity': {},
    'devices': {
        'hostdev': _SOURCE_ADDRESS,
        'interface': {**_SOURCE_ADDRESS, 'actual': _SOURCE_ADDRESS},
        'disk': _SOURCE_ADDRESS,
        'memory': {'source': {'nodemask': {}}},
    },
    'metadata': {**_nova({'instance': _FLAVOR}, '1.0'), **_nova({'instance': _FLAVOR}, '1.1')},
}

_ROOTS = {
    'domain': {'domain': _DOMAIN},
    'domstatus': {'domstatus': {'numad': {}, 'job': {}, 'vcpus': {'vcpu': {}},
                                'domain': _DOMAIN}},
}

# libvirt reads the first of these and ignores the others: with two, what it does and what we
# believe could be made to differ.
_ONCE = frozenset((
    'domain', 'numad', 'job', 'uuid', 'name', 'memory', 'maxMemory', 'vcpu', 'iothreads',
    'numatune', 'numatune/memory', 'cputune', 'cputune/emulatorpin', 'memoryBacking',
    'memoryBacking/hugepages', 'memoryBacking/allocation', 'launchSecurity', 'devices',
    'metadata', 'metadata/instance', 'metadata/instance/flavor'))


class _Collector:
    """Expat's handlers: walks the tree of known elements, counts in all others."""

    def __init__(self, tree):
        self.found = {}
        self.elements = 0
        self.unknown_depth = 0
        # One entry for each open known element: (children known below it, path, attributes).
        self.open = [(tree, '', None)]
        self.texts = [[]]

    def start(self, name, attributes):
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise DomainError(f'more than {MAX_ELEMENTS} elements')
        known, path, _ = self.open[-1]
        if self.unknown_depth or name not in known:
            self.unknown_depth += 1
            if self.unknown_depth > MAX_DEPTH:
                raise DomainError(f'elements nest deeper than {MAX_DEPTH}')
            return
        self.open.append((known[name], _join(path, name), attributes))
        self.texts.append([])

    def text(self, text):
        if not self.unknown_depth:
            self.texts[-1].append(text)

    def end(self, name):
        if self.unknown_depth:
            self.unknown_depth -= 1
            return
        _, path, attributes = self.open.pop()
        elements = self.found.setdefault(path, [])
        if elements and path in _ONCE:
            raise DomainError(f'<{path}> occurs twice')
        elements.append(Element(attributes, ''.join(self.texts.pop())))

    def refuse_document_type(self, *_):
        raise DomainError('document types and entities are not accepted')


def _join(path, name):
    # Paths start below <domain>, so that they are the same in a status file.
    name = name.rpartition(' ')[2]
    return f'{path}/{name}' if path not in ('', 'domain', 'domstatus') else name


def collect(xml, root):
    """Return {path: [Element]} of the elements in use, in document order.

    Paths are relative to ``<domain>``, without namespaces: 'cputune/vcpupin'. The root elements
    are at 'domain' and, in a status file, 'domstatus'.

    :param xml: bytes
    :param root: the root element expected, 'domain' or 'domstatus'
    :raises DomainError: not such a document, malformed or beyond a bound
    """
    if not isinstance(xml, bytes):
        raise DomainError(f'the XML is no bytes but {type(xml).__name__}')
    if len(xml) > MAX_BYTES:
        raise DomainError(f'the XML is larger than {MAX_BYTES} bytes')
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
        raise DomainError(f'the XML is not well-formed: {error}') from error
    for path in (root, 'domain'):
        if path not in collector.found:
            raise DomainError(f'no <{path}> where one belongs')
    return collector.found
