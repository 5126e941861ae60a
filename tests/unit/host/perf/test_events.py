# SPDX-License-Identifier: Apache-2.0
"""Each CPU gets the events that its documents, libpfm, the kernel or the operator name."""

import csv
import tempfile
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import exceptions
from nova_numa_pmc.core import rates
from nova_numa_pmc.host.perf import event_table, events
from nova_numa_pmc.host.perf.pmu import parse_terms
from tests.cases.root import RootCase
from tests.fixtures import libpfm
from tests.fixtures.checkout import TOP

DEVICES = 'sys/bus/event_source/devices/'
INTEL = (
    'vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: %d\n'
    'model name\t: Xeon\nstepping\t: %d\n'
)
CPU_PMU = {
    'type': '4\n',
    'format/event': 'config:0-7\n',
    'format/umask': 'config:8-15\n',
    'format/cmask': 'config:24-31\n',
    'events/cpu-cycles': 'event=0x3c\n',
    'events/instructions': 'event=0xc0\n',
}
IMC = {
    'type': '15\n',
    'cpumask': '0,24\n',
    'format/event': 'config:0-7\n',
    'format/umask': 'config:8-15\n',
    'events/cas_count_read': 'event=0x04,umask=0x03\n',
    'events/cas_count_read.scale': '6.103515625e-5\n',
    'events/cas_count_read.unit': 'MiB\n',
}
LAB = {
    'type': '20\n',
    'format/event': 'config:0-7\n',
    'events/local_dram': 'event=0x0\n',
    'events/remote_dram': 'event=0x1\n',
    'events/hits': 'event=0x2\n',
    'events/instructions': 'event=0x3\n',
}
LAB_IMC = {
    'type': '21\n',
    'cpumask': '2\n',
    'format/event': 'config:0-7\n',
    'events/cas_reads': 'event=0x0\n',
    'events/cas_writes': 'event=0x1\n',
}


#: As snbep_uncore_qpi_formats_attr[] and skx_uncore_cha_formats_attr[] of the kernel's
#: arch/x86/events/intel/uncore_snbep.c.
QPI = {
    'type': '30\n',
    'cpumask': '0\n',
    'format/event': 'config:0-7,21\n',
    'format/umask': 'config:8-15\n',
    'events/drs_data': 'event=0x102,umask=0x08\n',
    'events/ncb_data': 'event=0x103,umask=0x04\n',
}
CHA = {
    'type': '31\n',
    'cpumask': '0\n',
    'format/event': 'config:0-7\n',
    'format/umask': 'config:8-15\n',
    'format/filter_rem': 'config1:32\n',
    'format/filter_loc': 'config1:33\n',
    'format/filter_nm': 'config1:36\n',
    'format/filter_all_op': 'config1:35\n',
    'format/filter_not_nm': 'config1:37\n',
}


class PmuCase(RootCase):
    """PMUs that are described in sysfs."""

    def add_pmu(self, name, files):
        for path, text in files.items():
            self.write(DEVICES + name + '/' + path, text)

    def roles(self, **kwargs):
        chosen = {}
        for event in events.select_events(self.root, **kwargs).events:
            chosen.setdefault(event.role, []).append(event)
        return chosen


class TestSources(unittest.TestCase):
    """The page that compares each event with the vendors' lists, by tools/event-sources."""

    def test_the_page_of_sources_has_each_event_of_the_table_and_no_other(self):
        with open(TOP / 'doc/source/reference/event-sources.csv', encoding='utf-8') as file:
            lines = list(csv.DictReader(file))
        self.assertEqual(
            [
                (row.title, entry.role, entry.terms)
                for row in event_table.ROWS
                for entry in row.entries
            ],
            [(line['CPU'], line['role'], line['here']) for line in lines],
        )
        for line in lines:
            with self.subTest(line=line):
                self.assertTrue(line['source'])
                here = {
                    term: value
                    for term, value in parse_terms(line['here'])
                    if value and not term.startswith('filter_')
                }
                if line['there'] and here:
                    self.assertEqual(here, dict(parse_terms(line['there'])))
                self.assertEqual(bool(line['there']), bool(line['name there']))


class TestTable(unittest.TestCase):
    def of(self, cpu, role):
        return [event for event in events.select_events(cpu=cpu).events if event.role == role]

    def test_the_register_code_of_remote_dram_is_that_of_the_deck(self):
        [remote] = self.of('GenuineIntel-6-2C-2', 'remote_dram')
        self.assertEqual(0x53100F, events.register_code(remote))

    def test_each_cpu_has_one_row_in_the_table(self):
        for row in event_table.ROWS:
            self.assertIs(row, events.find_row(row.key))
        for cpu in ('AuthenticAMD-23-8-2', 'AuthenticAMD-25-21-0', 'AuthenticAMD-25-A1-1'):
            self.assertIsNotNone(events.find_row(cpu), cpu)

    def test_an_unknown_cpu_has_no_events_and_says_so(self):
        for cpu in ('GenuineIntel-6-99-1', '', 'CentaurHauls-7-1-1', 'xGenuineIntel-6-2C-2'):
            selection = events.select_events(cpu=cpu)
            self.assertIsNone(selection.row)
            self.assertEqual((), selection.events)
            self.assertIn('not in the table', dict(selection.missing)['remote_dram'])


#: {(libpfm4's prefix, row of the table): {role: libpfm4's names of its events, in their order}}
LIBPFM = {
    **{
        (prefix, row): {
            'local_dram': 'MEM_UNCORE_RETIRED:' + local,
            'remote_dram': 'MEM_UNCORE_RETIRED:REMOTE_DRAM',
            'stalled_cycles': 'RESOURCE_STALLS:ANY',
        }
        for prefix, row, local in (
            ('nhm', 'nehalem-ep', 'LOCAL_DRAM'),
            ('nhm_ex', 'nehalem-ex', 'LOCAL_DRAM'),
            ('wsm', 'westmere-sp', 'LOCAL_DRAM'),
            ('wsm_dp', 'westmere-dp', 'LOCAL_DRAM_AND_REMOTE_CACHE_HIT'),
        )
    },
    **{
        (prefix, row): {
            'local_dram': event + ':LOCAL_DRAM',
            'remote_dram': event + ':REMOTE_DRAM',
            'stalled_cycles': 'CYCLE_ACTIVITY:' + stalls,
        }
        for prefix, row, event, stalls in (
            ('hsw_ep', 'haswell-ep', 'MEM_LOAD_UOPS_L3_MISS_RETIRED', 'STALLS_L2_PENDING'),
            ('bdw_ep', 'broadwell-ep', 'MEM_LOAD_UOPS_L3_MISS_RETIRED', 'STALLS_L2_PENDING'),
            ('skx', 'skylake-sp', 'MEM_LOAD_L3_MISS_RETIRED', 'STALLS_L3_MISS'),
            ('clx', 'cascadelake-sp', 'MEM_LOAD_L3_MISS_RETIRED', 'STALLS_L3_MISS'),
            ('icx', 'icelake-sp', 'MEM_LOAD_L3_MISS_RETIRED', 'STALLS_L3_MISS'),
            ('spr', 'sapphirerapids', 'MEM_LOAD_L3_MISS_RETIRED', 'STALLS_L3_MISS'),
        )
    },
    # Of local DRAM on Ivy Bridge-EP and remote DRAM on Westmere-EX, the table says why it differs.
    ('ivb_ep', 'ivybridge-ep'): {'remote_dram': 'MEM_LOAD_UOPS_LLC_MISS_RETIRED:REMOTE_DRAM'},
    ('snb_ep', 'sandybridge-ep'): {
        'local_dram': 'MEM_LOAD_UOPS_LLC_MISS_RETIRED:LOCAL_DRAM',
        'remote_dram': 'MEM_LOAD_UOPS_LLC_MISS_RETIRED:REMOTE_DRAM',
    },
    **{
        ('amd64_fam%s' % prefix, prefix[-4:]): {
            role: '%s_FROM_SYSTEM:%s' % (event, umask)
            for role, umask in zip(('local_dram', 'remote_dram'), umasks.split())
        }
        for prefix, event, umasks in (
            ('17h_zen2', 'DATA_CACHE_REFILLS', 'LS_MABRESP_LCL_DRAM LS_MABRESP_RMT_DRAM'),
            ('19h_zen3', 'ANY_DATA_CACHE_FILLS', 'MEM_IO_LCL MEM_IO_RMT'),
            ('19h_zen4', 'ANY_DATA_CACHE_FILLS', 'DRAM_IO_NEAR DRAM_IO_FAR:ALT_MEM_NEAR_FAR'),
        )
    },
}


class TestAgainstLibpfm(unittest.TestCase):
    def setUp(self):
        try:
            libpfm.encode('skx::CYCLE_ACTIVITY:STALLS_L3_MISS')
        except OSError:
            self.skipTest('libpfm4 is not installed')

    def test_entries_agree_with_libpfm_where_it_names_them(self):
        for (prefix, row), names_by_role in LIBPFM.items():
            chosen = events.select_events(cpu=row).events
            for role, names in names_by_role.items():
                with self.subTest(row, role=role):
                    self.assertEqual(
                        [libpfm.encode(prefix + '::' + name) for name in names.split()],
                        [(4, *event[4:7]) for event in chosen if event.role == role],
                    )

    def test_codes_of_uncore_events_are_those_of_libpfm(self):
        for name, codes in (
            *(
                ('%s_unc_qpi0::UNC_Q_TXL_FLITS_%s' % (prefix, event), [code])
                for prefix in ('snbep', 'ivbep', 'hswep', 'bdx')
                for event, code in (('G1:DRS_DATA', 0x200800), ('G2:NCB_DATA', 0x200401))
            ),
            ('skx_unc_cha0::UNC_C_TOR_INSERTS:IO_HIT', [0x1435, 0, 0x3B]),
            ('skx_unc_cha0::UNC_C_TOR_INSERTS:IO_MISS', [0x2435, 0, 0x3B]),
        ):
            with self.subTest(name):
                self.assertEqual(codes, libpfm.raw_codes(name))


class TestThisMachine(PmuCase):
    def test_without_a_pmu_every_role_is_missing(self):
        selection = events.select_events(self.root)
        self.assertEqual((), selection.events)
        self.assertEqual(set(rates.ROLES), set(dict(selection.missing)))

    def test_a_known_cpu_without_a_pmu_says_what_is_missing(self):
        self.write('proc/cpuinfo', INTEL % (0x55, 4))
        selection = events.select_events(self.root)
        self.assertEqual('skylake-sp', selection.row.key)
        self.assertIn('there is no PMU cpu', dict(selection.missing)['remote_dram'])

    def test_kernel_names_come_before_the_table(self):
        self.write('proc/cpuinfo', INTEL % (0x55, 4))
        self.add_pmu('cpu', CPU_PMU)
        self.add_pmu('uncore_imc_0', IMC)
        self.add_pmu('uncore_imc_1', IMC)
        roles = self.roles()
        self.assertEqual(
            [('kernel', 4, 0x3C)], [(e.source, e.type, e.config) for e in roles['cycles']]
        )
        self.assertEqual(
            [('table', 4, 0x2D3)], [(e.source, e.type, e.config) for e in roles['remote_dram']]
        )
        self.assertEqual(['uncore_imc_0', 'uncore_imc_1'], [e.pmu for e in roles['mem_read']])
        self.assertEqual(
            [('kernel', (0, 24), 0x304, 64)] * 2,
            [(e.source, e.cpus, e.config, e.bytes_per_count) for e in roles['mem_read']],
        )
        # The kernel names no writes here, but the table does.
        self.assertEqual(
            [('table', 0xC04, 64)] * 2,
            [(e.source, e.config, e.bytes_per_count) for e in roles['mem_write']],
        )

    def test_a_pmu_that_names_dram_accesses_itself_is_used(self):
        self.add_pmu('numa_emu', LAB)
        self.add_pmu('numa_emu_imc_0', LAB_IMC)
        self.add_pmu('numa_emu_imc_1', LAB_IMC)
        roles = self.roles()
        self.assertEqual([(20, 0)], [(e.type, e.config) for e in roles['local_dram']])
        self.assertEqual([(20, 1)], [(e.type, e.config) for e in roles['remote_dram']])
        self.assertEqual([(20, 3)], [(e.type, e.config) for e in roles['instructions']])
        self.assertEqual(
            [(0, 64, (2,)), (1, 64, (2,))],
            [(e.node, e.bytes_per_count, e.cpus) for e in roles['mem_read']],
        )
        self.assertEqual([1, 1], [e.config for e in roles['mem_write']])

    def test_data_sent_over_qpi_is_counted_not_what_the_kernel_names_which_is_received(self):
        # libpfm4, snbep_unc_qpi0 and its successors: 0x200800 and 0x200401 are
        # UNC_Q_TXL_FLITS_G1:DRS_DATA and G2:NCB_DATA; 0x200802 and 0x200403 are RXL.
        # pmu-events' uncore-interconnect.json of jaketown, ivytown, haswellx and broadwellx has
        # event 0x0 and 0x1 for TxL, 0x2 and 0x3 for RxL.
        for model in (0x2D, 0x3E, 0x3F, 0x4F):
            self.write('proc/cpuinfo', INTEL % (model, 1))
            self.add_pmu('uncore_qpi_0', QPI)
            with self.subTest(model):
                self.assertEqual(
                    [('table', 30, 0x200800, 8), ('table', 30, 0x200401, 8)],
                    [
                        (e.source, e.type, e.config, e.bytes_per_count)
                        for e in self.roles()['link_tx']
                    ],
                )

    def test_requests_of_devices_are_counted_with_a_filter_that_lets_them_pass(self):
        # libpfm4, skx_unc_cha0::UNC_C_TOR_INSERTS:IO_HIT: 0x1435 and, by default, filter 0x3b in
        # the upper half; pmu-events' skylakex and cascadelakex have umask 0x14 and 0x24.
        for stepping in (4, 7):
            self.write('proc/cpuinfo', INTEL % (0x55, stepping))
            self.add_pmu('uncore_cha_0', CHA)
            roles = self.roles()
            with self.subTest(stepping):
                self.assertEqual(
                    [(0x1435, 0x3B << 32), (0x2435, 0x3B << 32)],
                    [(e.config, e.config1) for role in ('io_hit', 'io_miss') for e in roles[role]],
                )

    def test_overrides_of_the_operator_replace_events(self):
        self.write('proc/cpuinfo', INTEL % (0x2C, 2))
        self.add_pmu('cpu', CPU_PMU)
        roles = self.roles(
            overrides={
                'remote_dram': 'r53100f',
                'local_dram': 'cpu/event=0xd3,umask=0x1/',
                'cycles': 'cpu/instructions/',
                'stalled_cycles': 'none',
            }
        )
        self.assertEqual(
            [('override', 4, 0x100F)], [(e.source, e.type, e.config) for e in roles['remote_dram']]
        )
        self.assertEqual(0x1D3, roles['local_dram'][0].config)
        self.assertEqual(0xC0, roles['cycles'][0].config)
        self.assertNotIn('stalled_cycles', roles)

    def test_bad_overrides_are_named(self):
        self.add_pmu('cpu', CPU_PMU)
        for role, spec in (
            ('cycles', 'cpu/nonsense=1/'),
            ('cycles', ''),
            ('cycles', 'gpu/event=1/'),
            ('cycles', 'cpu/event=0x100/'),
            ('cycles', 'nope::EVENT'),
            ('cycles', 'r; rm -rf'),
        ):
            with self.subTest(role=role, spec=spec):
                with self.assertRaises(exceptions.EventError):
                    events.select_events(self.root, overrides={role: spec})

    def test_mediated_vpmu_leaves_core_events_alone(self):
        self.write('proc/cpuinfo', INTEL % (0x55, 4))
        self.add_pmu('cpu', CPU_PMU)
        self.add_pmu('uncore_imc_0', IMC)
        path = 'sys/module/kvm_intel/parameters/enable_mediated_pmu'
        self.write(path, 'N\n')
        self.assertIn('cycles', self.roles())
        self.write(path, 'Y\n')
        self.assertEqual({'mem_read', 'mem_write', 'mem_max'}, set(self.roles()))
        self.assertIn(
            'enable_mediated_pmu=0', dict(events.select_events(self.root).missing)['remote_dram']
        )

    def test_garbage_in_sysfs_costs_only_its_events(self):
        self.write('proc/cpuinfo', INTEL % (0x55, 4))
        self.add_pmu('cpu', dict(CPU_PMU, **{'format/umask': 'config:8-99'}))
        self.add_pmu('uncore_imc_0', dict(IMC, cpumask='0-\n'))
        self.add_pmu('uncore_imc_1', dict(IMC, type='four'))
        self.add_pmu('uncore_imc_2', dict(IMC, **{'events/cas_count_read.scale': 'nan'}))
        self.add_pmu('uncore_imc_3', dict(IMC, **{'events/cas_count_read': 'event=?'}))
        roles = self.roles()
        self.assertNotIn('remote_dram', roles)  # its umask cannot be encoded
        self.assertIn('cycles', roles)
        self.assertEqual(
            [('uncore_imc_2', 64)], [(e.pmu, e.bytes_per_count) for e in roles['mem_read']]
        )

    @settings(max_examples=40, deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(sorted(set(CPU_PMU) | set(IMC))),
            st.one_of(st.text(max_size=40), st.from_regex(r'config\d?:[0-9,-]+')),
            max_size=6,
        ),
        st.text(max_size=120),
    )
    def test_fuzzed_files_never_crash_the_selection(self, files, cpuinfo):
        with tempfile.TemporaryDirectory() as self.root:
            self.write('proc/cpuinfo', INTEL % (0x55, 4) + cpuinfo)
            self.add_pmu('cpu', dict(CPU_PMU, **files))
            self.add_pmu('uncore_imc_0', dict(IMC, **files))
            for event in events.select_events(self.root).events:
                self.assertTrue(0 <= event.config < 1 << 64)
