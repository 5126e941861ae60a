# SPDX-License-Identifier: Apache-2.0
"""Guests are read from domain XML as Nova and libvirt write it, and hostile XML is refused."""

import os
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.core import extra_specs
from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.host import domain_xml, guests
from tests.cases.root import RootCase
from tests.fixtures import domains
from tests.fixtures.model_records import GIB

HEAD = f'<domain><name>a</name><uuid>{domains.UUID}</uuid>'


def parse(elements='', memory='<memory>1048576</memory>'):
    """Parse a domain that has only these elements."""
    return guests.parse(f'{HEAD}{memory}{elements}</domain>'.encode())


class NovaShapesTest(unittest.TestCase):
    def test_a_guest_of_a_plain_flavor_is_read(self):
        for version, specs in (
            ('29.4.0', None),
            ('31.3.1', None),
            ('33.0.2', {}),
            ('34.0.0', {'hw_rng:allowed': 'True'}),
        ):
            with self.subTest(version=version):
                guest = guests.parse(
                    domains.domain(metadata=domains.nova_metadata('m1.small', specs, version))
                )
                self.assertEqual(
                    model.Guest(
                        domains.UUID, 'instance-0000002a', 2, 2 * GIB, flavor='m1.small', id=7
                    ),
                    guest,
                )

    def test_a_shared_cpu_set_only_limits_a_guest(self):
        guest = guests.parse(domains.domain(vcpu="<vcpu cpuset='0-3,6'>2</vcpu>"))
        self.assertEqual({0, 1, 2, 3, 6}, guest.allowed_cpus)
        self.assertEqual((), guest.placed_by)

    def test_a_guest_with_dedicated_cpus_is_placed_by_others(self):
        guest = guests.parse(
            domains.domain(
                placement=domains.DEDICATED,
                metadata=domains.nova_metadata(extra_specs={'hw:cpu_policy': 'dedicated'}),
            )
        )
        self.assertEqual({'numatune', 'vcpupin', 'emulatorpin', 'dedicated'}, set(guest.placed_by))
        self.assertEqual(((0,), {2, 6}), (guest.numatune_nodes, guest.pinned_cpus))

    def test_a_guest_on_huge_pages_is_locked(self):
        guest = guests.parse(domains.domain(backing=domains.HUGE_PAGES))
        self.assertEqual((GIB, True), (guest.page_bytes, guest.locked))
        self.assertEqual((), guest.placed_by, "the pages' nodeset is the guest's, not the host's")

    def test_a_hint_that_is_not_a_line_of_text_is_kept_as_a_wrong_one(self):
        for text in ('none\nspread', 'no&#x7f;ne', 'n' * 256):
            with self.subTest(text=text):
                guest = guests.parse(
                    domains.domain(
                        metadata=domains.nova_metadata(extra_specs={'numa_pmc:policy': text})
                    )
                )
                ((_, kept),) = guest.extra_specs
                self.assertTrue(kept.isprintable() and len(kept) < 255)
                self.assertEqual(1, len(extra_specs.parse(guest.extra_specs).problems))


class ElementsTest(unittest.TestCase):
    def test_memory_of_a_guest_is_what_it_has_beside_what_it_may_grow_to(self):
        guest = parse(
            "<maxMemory slots='16' unit='KiB'>4194304</maxMemory>"
            "<currentMemory unit='KiB'>4</currentMemory>"
        )
        self.assertEqual((GIB, 4 * GIB), (guest.memory_bytes, guest.memory_max_bytes))
        self.assertEqual(GIB, parse("<currentMemory unit='KiB'>4</currentMemory>").memory_bytes)

    def test_persistent_memory_does_not_count_as_ram(self):
        for kind, own in (
            ('nvdimm', False),
            ('virtio-pmem', False),
            ('sgx-epc', False),
            ('dimm', True),
            ('virtio-mem', True),
        ):
            with self.subTest(kind=kind):
                guest = guests.parse(
                    domains.domain(
                        memory_kib=(8 + 512) << 20,
                        max_memory_kib=(16 + 512) << 20,
                        devices=domains.memory_device(kind, 512 << 20),
                    )
                )
                wanted = (8 + 512, 16 + 512) if own else (8, 16)
                self.assertEqual(
                    tuple(gib << 30 for gib in wanted),
                    (guest.memory_bytes, guest.memory_max_bytes),
                )

    def test_vcpus_online_at_most_and_allowed_are_read(self):
        for element, vcpus, most, allowed in (
            ('', 1, None, None),
            ('<vcpu>4</vcpu>', 4, None, None),
            ("<vcpu current='2'>8</vcpu>", 2, 8, None),
            ("<vcpu current='8'>8</vcpu>", 8, None, None),
            ("<vcpu cpuset=''>1</vcpu>", 1, None, None),
            ("<vcpu cpuset='0-2,9'>1</vcpu>", 1, None, {0, 1, 2, 9}),
        ):
            with self.subTest(element=element):
                guest = parse(element)
                self.assertEqual(
                    (vcpus, most, allowed), (guest.vcpus, guest.vcpus_max, guest.allowed_cpus)
                )

    def test_elements_that_mean_placed_by_others_are_read(self):
        for elements, placed_by, nodes in (
            ("<numatune><memory mode='preferred' nodeset='1'/></numatune>", ('numatune',), (1,)),
            (
                "<numatune><memory mode='interleave' nodeset='0-1'/></numatune>",
                ('numatune',),
                (0, 1),
            ),
            (
                "<numatune><memory mode='strict' placement='auto'/></numatune>",
                ('numatune', 'numad'),
                (),
            ),
            (
                "<numatune><memnode cellid='0' nodeset='0'/><memnode cellid='1' nodeset='2'/>"
                '</numatune>',
                ('numatune', 'memnode'),
                (0, 2),
            ),
            ("<vcpu placement='auto'>2</vcpu>", ('numad',), ()),
            ("<cputune><emulatorpin cpuset='1'/></cputune>", ('emulatorpin',), ()),
            ("<cputune><iothreadpin iothread='1' cpuset='1'/></cputune>", ('iothreadpin',), ()),
            (
                "<cputune><cachetune vcpus='0'><cache id='0' level='3' type='both' size='3'/>"
                '</cachetune></cputune>',
                ('cachetune',),
                (),
            ),
            (
                "<cputune><memorytune vcpus='0'><node id='0' bandwidth='60'/></memorytune>"
                '</cputune>',
                ('memorytune',),
                (),
            ),
            (
                "<devices><memory model='dimm'><source><nodemask>1</nodemask></source>"
                '</memory></devices>',
                ('nodemask',),
                (1,),
            ),
            ('<cputune><shares>2048</shares><quota>-1</quota></cputune>', (), ()),
            ('<numatune/>', (), ()),
            ("<cpu><numa><cell id='0' cpus='0-1' memory='512' unit='MiB'/></numa></cpu>", (), ()),
        ):
            with self.subTest(elements=elements):
                guest = parse(elements)
                self.assertEqual((placed_by, nodes), (guest.placed_by, guest.numatune_nodes))

    def test_the_mode_in_which_all_memory_of_a_guest_is_given_nodes_is_read(self):
        dimm = (
            "<devices><memory model='dimm'><source><nodemask>1</nodemask></source></memory>"
            '</devices>'
        )
        for elements, nodes, mode in (
            ("<numatune><memory nodeset='1'/></numatune>", (1,), 'strict'),
            ("<numatune><memory mode='strict' nodeset='0'/></numatune>" + dimm, (0, 1), 'strict'),
            ("<numatune><memory mode='restrictive' nodeset='1'/></numatune>", (1,), 'strict'),
            (
                "<numatune><memory mode='strict' nodeset='0'/>"
                "<memnode cellid='0' mode='strict' nodeset='1'/></numatune>",
                (0, 1),
                'strict',
            ),
            (
                "<numatune><memory mode='strict' nodeset='0'/>"
                "<memnode cellid='0' mode='preferred' nodeset='1'/></numatune>",
                (0, 1),
                '',
            ),
            ("<numatune><memory mode='preferred' nodeset='1'/></numatune>", (1,), 'preferred'),
            ("<numatune><memory mode='interleave' nodeset='1'/></numatune>", (1,), 'interleave'),
            ("<numatune><memnode cellid='0' mode='strict' nodeset='1'/></numatune>", (1,), ''),
            ("<numatune><memory mode='strict' placement='auto'/></numatune>", (), ''),
            (dimm, (1,), ''),
            ('', (), ''),
        ):
            with self.subTest(elements=elements):
                guest = parse(elements)
                self.assertEqual((nodes, mode), (guest.numatune_nodes, guest.mem_mode))

    def test_elements_that_keep_memory_from_moving_lock_it(self):
        for elements in (
            '<memoryBacking><locked/></memoryBacking>',
            "<launchSecurity type='sev'/>",
            "<launchSecurity type='tdx'/>",
            "<devices><interface type='vdpa'><source dev='/dev/vhost-vdpa-0'/></interface>"
            '</devices>',
            "<devices><interface type='network'><actual type='hostdev'/></interface></devices>",
            "<devices><hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
            f"<address uuid='{domains.UUID}'/></source></hostdev></devices>",
            "<devices><disk type='nvme' device='disk'/></devices>",
            "<devices><disk type='vhostvdpa'><source dev='/dev/vhost-vdpa-0'/></disk></devices>",
        ):
            with self.subTest(elements=elements):
                self.assertTrue(parse(elements).locked)
        for elements in (
            "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>",
            "<devices><hostdev type='usb'><source><address bus='1' device='2'/></source>"
            '</hostdev></devices>',
        ):
            with self.subTest(elements=elements):
                self.assertFalse(parse(elements).locked)

    def test_names_as_libvirt_allows_them_are_read(self):
        for name in (
            'instance-0000002a',
            'Bäume 森',
            'a' * 255,
            '..a',
            "it's <&>",
            'a\u3000b\xa0c',
            '\U0001f469\u200d\U0001f4bb',
            '\U0001fae9 \U0001facd',
        ):
            with self.subTest(name=name):
                escaped = name.replace('&', '&amp;').replace('<', '&lt;')
                self.assertEqual(name, guests.parse(domains.domain(name=escaped)).name)


class HostileTest(unittest.TestCase):
    def refused(self, xml, reason):
        with self.assertRaisesRegex(DomainError, reason) as caught:
            guests.parse(xml)
        self.assertLess(len(str(caught.exception)), 500)
        self.assertTrue(str(caught.exception).isprintable())

    def test_unsafe_names_are_refused(self):
        for name, reason in (
            ('../../etc/passwd', 'slash'),
            ('a/b', 'slash'),
            ('..', 'slash'),
            ('.', 'slash'),
            ('a\nb', 'control'),
            ('a\tb', 'control'),
            ('a&#x1b;[2J', 'not well-formed'),
            ('a\u202eb', 'control'),
            ('a\x7fb', 'control'),
            ('a\x85b', 'control'),
            ('a\u2028b', 'control'),
            ('', '1 to 255'),
            ('a' * 256, '1 to 255'),
            ('森' * 86, '1 to 255'),
        ):
            with self.subTest(name=name):
                self.refused(domains.domain(name=name), reason)

    def test_malformed_uuids_are_refused(self):
        for uuid in ('', 'x', '0' * 32, domains.UUID + '0', domains.UUID[:-1] + 'g', '１' * 32):
            with self.subTest(uuid=uuid):
                self.refused(domains.domain(uuid=uuid), 'uuid')

    def test_nested_entities_are_refused(self):
        entities = ''.join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
        xml = f'<!DOCTYPE l [<!ENTITY l0 "lol">{entities}]><domain><name>&l9;</name></domain>'
        self.refused(xml.encode(), 'document types')

    def test_external_and_unknown_entities_are_refused(self):
        self.refused(b'<!DOCTYPE d SYSTEM "file:///etc/passwd"><domain/>', 'document types')
        self.refused(b'<domain><name>&other;</name></domain>', 'not well-formed')

    def test_deep_nesting_is_refused(self):
        self.refused(b'<domain>' + b'<a>' * 5000 + b'</a>' * 5000 + b'</domain>', 'deeper')
        self.refused(b'<a>' * 5000, 'deeper')
        chain = b'<backingStore>' * 5000
        self.refused(b'<domain><devices><disk>' + chain, 'deeper')

    def test_too_many_elements_are_refused(self):
        self.refused(b'<domain>' + b'<a/>' * (domain_xml.ELEMENTS_MAX + 1), 'elements')

    def test_a_document_that_is_too_large_is_refused(self):
        self.refused(domains.domain(rest=' ' * domain_xml.SIZE_MAX_BYTES), 'larger')

    def test_devices_with_more_memory_than_the_guest_are_refused(self):
        device = domains.memory_device('nvdimm', 2 << 20)
        self.refused(domains.domain(memory_kib=2 << 20, devices=device), 'no RAM')

    def test_too_many_pins_are_refused(self):
        pins = ''.join(f"<vcpupin vcpu='{n}' cpuset='{n}-16383'/>" for n in range(400))
        self.refused(domains.domain(placement=f'<cputune>{pins}</cputune>'), 'more than')

    def test_wrong_values_are_refused(self):
        for elements in (
            '<vcpu>0</vcpu>',
            '<vcpu>-1</vcpu>',
            '<vcpu>two</vcpu>',
            '<vcpu></vcpu>',
            '<vcpu>１</vcpu>',
            '<vcpu>1e3</vcpu>',
            '<vcpu>99999999</vcpu>',
            "<vcpu current='9'>8</vcpu>",
            "<vcpu current='0'>8</vcpu>",
            "<vcpu cpuset='3-1'>1</vcpu>",
            "<vcpu cpuset='1,,2'>1</vcpu>",
            "<vcpu cpuset='^1-3'>1</vcpu>",
            "<vcpu cpuset='0-99999'>1</vcpu>",
            "<vcpu cpuset='a'>1</vcpu>",
            "<maxMemory unit='XB'>1</maxMemory>",
            "<maxMemory unit='KiB'>%d</maxMemory>" % (1 << 60),
            '<maxMemory>0</maxMemory>',
            "<numatune><memory nodeset='x'/></numatune>",
            "<memoryBacking><hugepages><page size='0'/></hugepages></memoryBacking>",
            '<memoryBacking><hugepages><page/></hugepages></memoryBacking>',
            "<devices><hostdev type='pci'><source><address bus='0x100' slot='0' "
            "function='0'/></source></hostdev></devices>",
            "<devices><hostdev type='pci'><source><address bus='0x' slot='0' "
            "function='0'/></source></hostdev></devices>",
            domains.nova_metadata(flavor='f' * 256),
        ):
            with self.subTest(elements=elements):
                self.refused(f'{HEAD}<memory>1</memory>{elements}</domain>'.encode(), '.')

    def test_an_extra_spec_that_occurs_twice_is_refused(self):
        spec = '<nova:extraSpec name="a">1</nova:extraSpec>'
        metadata = domains.nova_metadata(extra_specs={'a': '1'}).replace(spec, spec * 2)
        self.refused(domains.domain(metadata=metadata), 'twice')

    def test_missing_elements_are_refused(self):
        for element in ('name', 'uuid', 'memory'):
            xml = domains.domain().replace(f'<{element}'.encode(), b'<other', 1)
            self.refused(xml.replace(f'</{element}>'.encode(), b'</other>', 1), element)


def _mutated():
    """Return valid XML in which some bytes were removed, replaced or repeated."""
    valid = domains.domain(
        placement=domains.DEDICATED,
        backing=domains.HUGE_PAGES,
        devices=domains.SRIOV,
        metadata=domains.nova_metadata(extra_specs={'numa_pmc:policy': 'auto'}),
    )
    place = st.integers(0, len(valid))
    change = st.tuples(
        place,
        st.integers(0, 40),
        st.one_of(
            st.binary(max_size=8),
            st.text("<>&;'/-0^,9=", max_size=8).map(str.encode),
            place.map(lambda start: valid[start : start + 60]),
        ),
    )

    def apply(changes):
        xml = valid
        for start, length, new in changes:
            xml = xml[:start] + new + xml[start + length :]
        return xml

    return st.lists(change, min_size=1, max_size=3).map(apply)


class FuzzTest(unittest.TestCase):
    def only_its_own_error(self, xml):
        try:
            guest = guests.parse(xml)
        except DomainError as error:
            self.assertTrue(str(error).isprintable())
        else:
            self.assertGreater(guest.memory_bytes, 0)
            self.assertGreater(guest.vcpus, 0)
            self.assertTrue(guest.name.isprintable())

    @given(st.binary(max_size=200))
    def test_random_bytes_raise_only_the_named_error(self, xml):
        self.only_its_own_error(xml)

    @given(_mutated())
    def test_mutated_xml_raises_only_the_named_error(self, xml):
        self.only_its_own_error(xml)


class RunningTest(RootCase):
    def setUp(self):
        super().setUp()
        self.directory = os.path.join(self.root, 'run/libvirt/qemu')

    def path(self, name):
        return os.path.join(self.directory, name)

    def test_running_guests_are_read_with_their_processes(self):
        domains.write_status(self.root, 'b', domains.domain('b'), 200)
        domains.write_status(self.root, 'a', domains.domain('a'), 100, state='paused')
        running, problems = guests.read_running(self.root)
        self.assertEqual([('a', 100), ('b', 200)], [(guest.name, guest.pid) for guest in running])
        self.assertEqual([], problems)

    def test_a_running_guest_is_read_as_the_hook_reads_it(self):
        xml = domains.domain(placement=domains.NUMA_NODES_1)
        domains.write_status(self.root, 'a', xml, 100)
        self.assertEqual(
            [guests.parse(xml)._replace(pid=100, vcpu_tids=(4711, 4712), state='running', id=7)],
            guests.read_running(self.root)[0],
        )

    def test_the_state_and_job_of_a_guest_are_read(self):
        for state, before, job in (
            ('running', "  <job type='none' async='backup'/>\n", 'backup'),
            ('paused', "  <job type='query' async='none'/>\n", None),
            ('paused', '', None),
        ):
            domains.write_status(self.root, 'a', domains.domain(), 100, state=state, before=before)
            [guest] = guests.read_running(self.root)[0]
            self.assertEqual((state, job), (guest.state, guest.job))

    def test_without_libvirt_no_guest_runs(self):
        self.assertEqual(([], []), guests.read_running(self.root))

    def test_ended_guests_are_skipped(self):
        domains.write_status(self.root, 'gone', domains.domain(), 100, alive=False)
        for name, pid in (('no-process', 0), ('failed', -1)):
            domains.write_status(self.root, name, domains.domain(), pid)
        self.assertEqual(([], []), guests.read_running(self.root))

    def test_files_that_vanish_are_skipped(self):
        domains.write_status(self.root, 'a', domains.domain(), 100)
        os.symlink('nowhere', self.path('b.xml'))
        running, problems = guests.read_running(self.root)
        self.assertEqual((1, []), (len(running), problems))

    def test_malformed_files_are_problems_and_hide_no_guest(self):
        domains.write_status(self.root, 'good', domains.domain(), 100)
        domains.write_status(self.root, 'pid', domains.domain(), 'x')
        domains.write_status(self.root, 'line\nbreak', b'', 100)
        os.makedirs(self.path('directory.xml'))
        for name, data in (
            ('empty', b''),
            ('domain', domains.domain()),
            ('cut', b'<domstatus'),
            ('huge', b' ' * (domain_xml.SIZE_MAX_BYTES + 1)),
        ):
            with open(self.path(f'{name}.xml'), 'wb') as stream:
                stream.write(data)
        running, problems = guests.read_running(self.root)
        self.assertEqual([100], [guest.pid for guest in running])
        self.assertEqual(
            ['cut', 'directory', 'domain', 'empty', 'huge', 'line\\nbreak', 'pid'],
            [problem.partition('.xml: ')[0].rpartition('/')[2] for problem in problems],
        )
        for problem in problems:
            self.assertTrue(problem.isprintable(), problem)
            self.assertTrue(problem.startswith(self.directory))

    def test_a_fifo_in_place_of_a_status_file_does_not_block(self):
        os.makedirs(self.directory)
        os.mkfifo(self.path('a.xml'))
        running, problems = guests.read_running(self.root)
        self.assertEqual((0, 1), (len(running), len(problems)))
