# SPDX-License-Identifier: Apache-2.0
"""For any domain document, only the expected errors are raised and no figure is wrong.

The figures come from a reader based on ``xml.etree`` that shares no code with the package.
"""

import os
import shutil
import unittest
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings

from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.host import guests, journal
from tests.cases.hook import HookCase
from tests.fixtures import fake_host, odd_domains

#: `NUMA_PMC_CASES=20000` for the long run.
CASES = int(os.environ.get('NUMA_PMC_CASES', '300'))
MANY = settings(
    max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
BASE_PAGE_BYTES = os.sysconf('SC_PAGESIZE')
POWERS = {'k': 1, 'm': 2, 'g': 3, 't': 4, 'p': 5, 'e': 6}


def size_bytes(number, unit):
    """Read a size as libvirt's formatdomain defines it: KB is 1000, k and KiB are 1024."""
    unit = {'': 'kib'}.get(unit or '', (unit or '').casefold())
    if unit in ('b', 'byte', 'bytes'):
        return int(number)
    base = 1000 if unit.endswith('b') and not unit.endswith('ib') else 1024
    return int(number) * base ** POWERS[unit[0]]


def whole_text(element):
    return ''.join(element.itertext())


def images(parent, source=True):
    for child in parent:
        if child.tag in ('backingStore', 'mirror', 'dataStore'):
            yield child
            yield from images(child)
        elif child.tag == 'source' and source:
            yield from images(child, False)


def is_locked(root):
    types = [
        ('devices/interface', 'hostdev vdpa'),
        ('devices/interface/actual', 'hostdev vdpa'),
        ('devices/hostdev', 'pci mdev'),
    ]
    disks = root.findall('devices/disk')
    kinds = [disk.get('type') for disk in disks] + [
        image.get('type') for disk in disks for image in images(disk)
    ]
    return (
        'nvme' in kinds
        or 'vhostvdpa' in kinds
        or root.find('memoryBacking/locked') is not None
        or root.find('launchSecurity') is not None
        or any(
            element.get('type') in words.split()
            for path, words in types
            for element in root.findall(path)
        )
    )


def page_bytes(root):
    if root.find('memoryBacking/hugepages') is None:
        return None
    pages = [
        size_bytes(page.get('size'), page.get('unit'))
        for page in root.findall('memoryBacking/hugepages/page')
    ] or [2 << 20]
    return max((size for size in pages if size > BASE_PAGE_BYTES), default=None)


def figures(xml):
    """Return the figures of a document: name, vCPUs, RAM it has, RAM it may grow to…"""
    root = ElementTree.fromstring(xml, ElementTree.XMLParser(encoding='utf-8'))
    sizes = {
        tag: size_bytes(whole_text(element), element.get('unit'))
        for tag in ('memory', 'maxMemory')
        for element in root.findall(tag)
    }
    other = sum(
        size_bytes(whole_text(size), size.get('unit'))
        for device in root.findall('devices/memory')
        if device.get('model') in ('nvdimm', 'virtio-pmem', 'sgx-epc')
        for size in device.findall('target/size')
    )
    vcpu = root.find('vcpu')
    most = 1 if vcpu is None else int(whole_text(vcpu))
    return (
        whole_text(root.find('name')),
        whole_text(root.find('uuid')).strip().lower(),
        most if vcpu is None else int(vcpu.get('current', most)),
        most,
        sizes['memory'] - other,
        max(sizes.values()) - other,
        page_bytes(root),
        is_locked(root),
    )


def read(xml):
    """Return the same figures from the package's reader."""
    guest = guests.parse(xml)
    return (
        guest.name,
        guest.uuid,
        guest.vcpus,
        guest.vcpus_max or guest.vcpus,
        guest.memory_bytes,
        guest.memory_max_bytes or guest.memory_bytes,
        guest.page_bytes,
        guest.locked,
    )


class ReaderTest(unittest.TestCase):
    @MANY
    @given(odd_domains.documents())
    def test_domains_that_libvirt_writes_are_read_right(self, tree):
        xml = odd_domains.xml(tree)
        self.assertEqual(figures(xml), read(xml))

    @MANY
    @given(odd_domains.mutated())
    def test_mutated_domains_are_read_right_or_refused(self, xml):
        try:
            guest = read(xml)
        except DomainError as error:
            self.assertTrue(str(error).isprintable() and len(str(error)) < 500)
        else:
            self.assertEqual(figures(xml), guest)


class HookTest(HookCase):
    def setUp(self):
        super().setUp()
        self.logged = []

    def run_hook(self, operation, name, xml):
        lines = journal.JournalLines(self.root, self.drain)
        return self.call(operation, xml=xml, name=name, lines=lines)

    def drain(self, sender, limit_s):
        self.logged += self.host.logged()
        return limit_s / 1000

    def forget(self):
        shutil.rmtree(self.host.path('run/nova-numa-pmc'), ignore_errors=True)

    def promises_by_name(self):
        return {promise.name: promise for promise in self.promises().values()}

    @MANY
    @given(odd_domains.mutated())
    def test_an_odd_guest_starts_and_is_promised_no_more_than_it_may_have(self, xml):
        self.forget()
        self.drain(None, 0)
        self.logged.clear()
        self.assertEqual(0, self.run_hook('start', 'odd', xml))
        self.drain(None, 0)
        self.assertTrue(self.logged)
        for name, promise in self.promises_by_name().items():
            self.assertEqual(figures(xml)[0], name)
            self.assertLessEqual(promise.memory_bytes, figures(xml)[4])
            self.assertEqual(0, self.run_hook('stopped', name, b''))
        self.assertEqual({}, self.promises())

    @MANY
    @given(odd_domains.mutated())
    def test_another_guest_starts_beside_a_running_odd_one(self, xml):
        self.forget()
        self.host.write('proc/77/cmdline', '')
        self.host.write(
            'run/libvirt/qemu/odd.xml',
            b"<domstatus state='running' pid='77'>" + xml + b'</domstatus>',
        )
        name = fake_host.name_of(1)
        self.assertEqual(0, self.run_hook('start', name, fake_host.domain_xml(1)))
        self.assertEqual(1, len(self.promises_by_name()[name].cpu_nodes))
