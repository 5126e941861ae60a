# SPDX-License-Identifier: Apache-2.0
"""Table of each CPU's events by role, with the document that each code comes from.

Codes are written as in perf (``event=0xd3,umask=0x2``). Each entry was compared with the kernel's
copy of the vendors' lists, ``tools/perf/pmu-events/arch`` (Intel perfmon, AMD, Arm), by
``tools/event-sources``, and by the unit tests with libpfm4 4.13 if that knows the CPU. If the two
disagree, a comment at the row says so.

The same code has different meanings on different models: event 0x0F with umask
0x10 is *remote* DRAM on Nehalem-EP and Westmere-DP, but *local* DRAM on
Westmere-SP. Rows are therefore keyed by model, and never by code alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.rates import (
    CYCLES,
    INSTRUCTIONS,
    IO_HIT,
    IO_MISS,
    LINK_MAX,
    LINK_TX,
    LOCAL_DRAM,
    MEM_MAX,
    MEM_READ,
    MEM_TRAFFIC,
    MEM_WRITE,
    REMOTE_DRAM,
    STALLED_CYCLES,
)
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    #: Name exported by the kernel: PMU pattern, event name, bytes per count, caveats.
    SysfsName = tuple[str, str, int | None, tuple[str, ...]]

SUBTRACT_REMOTE = 'includes remote: remote_dram is subtracted'
RETIRED = 'retired loads only: prefetches and stores are left out, so this is not bandwidth'
HITM = 'modified lines whose home is remote are counted as DRAM'
SNC = 'with sub-NUMA clustering remote means another cluster, not only another socket'
NPS = 'remote means another NUMA node, so NPS and L3-as-NUMA decide what is counted'
PACKAGE = 'one sum for each package: with sub-NUMA clustering its nodes share it'


class Entry(Record):
    """One event of a row.

    :param terms: perf terms, such as ``event=0xd3,umask=0x1``
    :param document: document that the code comes from
    :param caveats: what the count leaves out or includes besides
    :param pmu: shell pattern of the kernel's PMUs (several boxes are added up)
    :param bytes_per_count: bytes that one count stands for; None if it is not an amount of data
    :param minus: role whose count is to be subtracted, if any
    :param rated_bytes_per_sec: what a link without a clock to count can carry, as specified
    :param of_slow_memory: whether it only counts where a node has memory but no CPUs
    """

    role: str
    terms: str
    document: str
    caveats: tuple[str, ...] = ()
    pmu: str = 'cpu'
    bytes_per_count: float | None = None
    minus: str | None = None
    rated_bytes_per_sec: float | None = None
    of_slow_memory: bool = False


class Row(Record):
    """One CPU model.

    :param cpuid: regular expression that matches ``vendor-family-model-stepping``
        in the form of perf's mapfile.csv (family decimal, the rest hexadecimal), or
        ``ARM-implementer-part``
    :param channels_max: memory channels of a package, if the kernel has more boxes than that
    """

    key: str
    title: str
    cpuid: str
    entries: tuple[Entry, ...]
    channels_max: int | None = None


# These tables are laid out by hand.
# fmt: off
def _retired(event: int, umasks: tuple[int, int], document: str,
             *caveats: str) -> tuple[Entry, ...]:
    """Return the entries of retired loads.

    :param umasks: of local and of remote DRAM
    """
    return tuple(
        Entry(role, 'event=%#x,umask=%#x' % (event, umask), document, (RETIRED, *caveats))
        for role, umask in zip((LOCAL_DRAM, REMOTE_DRAM), umasks))


_SDM = 'Intel SDM vol. 3B, performance-monitoring events'


def _intel(stall: str, stall_caveat: str) -> tuple[Entry, ...]:
    """Return the architectural events (Intel SDM vol. 3B, table 20-1) and the model's stalls."""
    return (
        Entry(CYCLES, 'event=0x3c', _SDM),
        Entry(INSTRUCTIONS, 'event=0xc0', _SDM),
        Entry(STALLED_CYCLES, stall, 'Intel perfmon', (stall_caveat,)))


_RESOURCE = _intel('event=0xa2,umask=0x1', 'any resource, not memory alone')
_SNB_CORE = _intel('event=0xa3,umask=0x5,cmask=0x5', 'stalls while a demand load misses L2')
_L3_STALL = 'stalls while a demand load misses L3'
_SKX_CORE = _intel('event=0xa3,umask=0x6,cmask=0x6', _L3_STALL)
_SRF_CORE = _intel('event=0x34,umask=0x78', _L3_STALL)


def _imc(read: Iterable[str], write: Iterable[str], document: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(role, terms, document, (PACKAGE,), 'uncore_imc_[0-9]*', 64)
        for role, events in ((MEM_READ, read), (MEM_WRITE, write))
        for terms in events)


def _imc_clock(terms: str, document: str, bytes_per_count: int = 16) -> tuple[Entry, ...]:
    """Return the entry of the DRAM clock, DCLK: by default two transfers of 8 bytes a tick.

    Intel 327043-001 (Xeon E5-2600 uncore guide), 2.5.4: *dclks - half of DDR speed*.
    """
    return (Entry(MEM_MAX, terms, document, ('of every channel, with modules or not',),
                  'uncore_imc_[0-9]*', bytes_per_count),)


_IMC_CAS = _imc(('event=0x4,umask=0x3',), ('event=0x4,umask=0xc',),
                'Intel perfmon, uncore: UNC_M_CAS_COUNT')
_DCLK_FIXED = _imc_clock('event=0xff', 'Linux, snbep_uncore_imc_events: clockticks')
_DCLK = _imc_clock('event=0x0', 'Intel perfmon, uncore: UNC_M_CLOCKTICKS (_P)')
_DCLK_QUARTER = _imc_clock(
    'event=0x1,umask=0x1',
    'Intel perfmon, Granite Rapids uncore: UNC_M_CLOCKTICKS, a quarter of the data rate', 32)


# The names of the driver, drs_data (0x102) and ncb_data (0x103) in snbep_uncore_qpi_events[], are
# of what is *received*: RxL_FLITS_G1 and G2. The JSON leaves out the bit that extends the event
# (bit 21 of config, 0x100 here); libpfm4 has 0x200800 and 0x200401 for these two.
def _qpi(bytes_per_clock: int, document: str) -> tuple[Entry, ...]:
    """Return the entries of QPI: 2 bytes a transfer, and 8 (or, from Haswell on, 4) a clock."""
    return (
        Entry(LINK_TX, 'event=0x100,umask=0x8',
              'Intel perfmon, uncore: UNC_Q_TxL_FLITS_G1.DRS_DATA',
              ('data flits of 8 bytes sent',), 'uncore_qpi_[0-9]*', 8),
        Entry(LINK_TX, 'event=0x101,umask=0x4',
              'Intel perfmon, uncore: UNC_Q_TxL_FLITS_G2.NCB_DATA',
              ('data flits of 8 bytes sent',), 'uncore_qpi_[0-9]*', 8),
        Entry(LINK_MAX, 'event=0x14', document, (), 'uncore_qpi_[0-9]*', bytes_per_clock))


_QPI = _qpi(16, 'Intel perfmon, Jaketown uncore: UNC_Q_CLOCKTICKS, an eighth of the transfers')
_QPI_HSX = _qpi(
    8, 'Intel perfmon, Broadwell-X uncore: UNC_Q_CLOCKTICKS, a quarter of the transfers')
_UPI = (
    Entry(LINK_TX, 'event=0x2,umask=0xf', 'Intel perfmon, uncore: UNC_UPI_TxL_FLITS.ALL_DATA',
          ('9 flits carry 64 bytes',), 'uncore_upi_[0-9]*', 64 / 9),
    Entry(LINK_MAX, 'event=0x1',
          'Intel perfmon, uncore: UNC_UPI_CLOCKTICKS, an eighth of the transfers',
          ('2 bytes of data a transfer',), 'uncore_upi_[0-9]*', 16))


def _cha(hit: str, miss: str, document: str) -> tuple[Entry, ...]:
    caveat = 'all requests of devices (DDIO), reads included'
    return tuple(Entry(role, terms, document, (caveat,), 'uncore_cha_[0-9]*')
                 for role, terms in ((IO_HIT, hit), (IO_MISS, miss)))


# The driver writes the filter register for this event (skx_uncore_cha_extra_regs[]), and with 0
# nothing matches: both local and remote targets, near memory or not, any opcode (0x3b, bits 32 to
# 37 of config1), as libpfm4 and Intel's pcm have it by default.
_CHA_SKX_FILTER = 'filter_rem=1,filter_loc=1,filter_all_op=1,filter_nm=1,filter_not_nm=1'
_CHA_SKX = _cha('event=0x35,umask=0x14,' + _CHA_SKX_FILTER,
                'event=0x35,umask=0x24,' + _CHA_SKX_FILTER,
                'Intel perfmon, Skylake-SP uncore: UNC_CHA_TOR_INSERTS')
_CHA_ICX = _cha('event=0x35,umask=0xc001fd04', 'event=0x35,umask=0xc001fe04',
                'Intel perfmon, Ice Lake-SP uncore: UNC_CHA_TOR_INSERTS')


_SKX_UNCORE = _IMC_CAS + _DCLK + _UPI + _CHA_SKX
_SPR_UNCORE = _imc(('event=0x5,umask=0xcf',), ('event=0x5,umask=0xf0',),
                   'Intel perfmon, Sapphire Rapids uncore: UNC_M_CAS_COUNT'
                   ) + _UPI + _CHA_ICX

_GNR_UNCORE = _imc(('event=0x5,umask=0xcf', 'event=0x6,umask=0xcf'),
                   ('event=0x5,umask=0xf0', 'event=0x6,umask=0xf0'),
                   'Intel perfmon, Granite Rapids uncore: UNC_M_CAS_COUNT_SCH0, _SCH1'
                   ) + _DCLK_QUARTER + _UPI + _CHA_ICX

# Umasks of local and of remote DRAM.
_NHM = 0x20, 0x10
_LLC_MISS = 'MEM_LOAD_UOPS_LLC_MISS_RETIRED'
_L3_MISS_UOPS = 'MEM_LOAD_UOPS_L3_MISS_RETIRED'
_UOPS = 0x1, 0x4
_LOADS = 0x1, 0x2
# CXL memory is a node of its own, so that it is remote to every CPU.
_LOADS_CXL = 0x1, 0x12
_LOCAL_CXL = (Entry(REMOTE_DRAM, 'event=0xd1,umask=0x80',
                    'Intel perfmon, Granite Rapids: MEM_LOAD_RETIRED.LOCAL_CXL_MEM',
                    (RETIRED, "CXL memory of the CPU's own socket"), of_slow_memory=True),)


def _server(key: str, title: str, cpuid: str, uncore: tuple[Entry, ...],
            umasks: tuple[int, int] = _LOADS) -> Row:
    """Return the row of Skylake-SP or a successor, which all have the same core events."""
    document = 'Intel perfmon, %s: MEM_LOAD_L3_MISS_RETIRED' % title
    return Row(key, title, cpuid, _retired(0xd3, umasks, document, SNC) + _SKX_CORE + uncore)


def _forest(key: str, title: str, cpuid: str, stalls: tuple[Entry, ...]) -> Row:
    """Return the row of a Xeon with E-cores: other names, but mostly the same codes."""
    document = 'Intel perfmon, %s: %s' % (title, _L3_MISS_UOPS)
    return Row(key, title, cpuid, _retired(0xd3, _LOADS, document, SNC) + stalls + _GNR_UNCORE)


def _amd_core(fills: int, document: str, caveat: str, remote: int = 0x40) -> tuple[Entry, ...]:
    """Return AMD's core entries, with data cache fills by their source."""
    return (
        Entry(CYCLES, 'event=0x76', document),
        Entry(INSTRUCTIONS, 'event=0xc0', document),
    ) + tuple(
        Entry(role, 'event=%#x,umask=%#x' % (fills, umask), document, (caveat, NPS))
        for role, umask in ((LOCAL_DRAM, 0x08), (REMOTE_DRAM, remote))
    )


# Remote DRAM, and extension memory (CXL), which is a node of its own.
_WITH_CXL = 0xc0
ANY_FILLS = 'any data cache fill, including prefetches; DRAM and I/O together'
_DEMAND_FILLS = 'demand data cache fills: prefetches are left out; DRAM and I/O together'
_AMD_DF = tuple(
    Entry(MEM_TRAFFIC, 'event=%#x,umask=0x38' % code,
          'AMD PPR family 17h: DRAM channel data controller',
          (PACKAGE, 'read and write together'), 'amd_df', 64)
    for code in (0x07, 0x47, 0x87, 0xc7, 0x107, 0x147, 0x187, 0x1c7)) + tuple(
    Entry(LINK_TX, 'event=%#x,umask=0x2' % code,
          'AMD PPR family 17h: remote link controller outbound data',
          ('units of 32 bytes',), 'amd_df', 32)
    for code in (0x7c7, 0x807, 0x847, 0x887))
_AMD_UMC = tuple(
    Entry(role, 'event=0xa,rdwrmask=%#x' % mask, 'AMD PPR family 19h model 11h: UMC CAS commands',
          ('needs Linux 6.10',), 'amd_umc_[0-9]*', 64)
    for role, mask in ((MEM_READ, 1), (MEM_WRITE, 2))) + (
    # A CAS of 64 bytes takes 8 clocks of one of a channel's two buses, as in Linux's metric
    # umc_data_bus_utilization: umc_data_slot_clks.all / 2 / umc_mem_clk.
    Entry(MEM_MAX, 'event=0x0', 'Linux, amdzen4/memory-controller.json: umc_mem_clk',
          ('needs Linux 6.10',), 'amd_umc_[0-9]*', 16),)


_ZEN4_STALLS = (
    Entry(STALLED_CYCLES, 'event=0xd6,umask=0xa2',
          'Linux, pmu-events of amdzen4 and amdzen5: ex_no_retire.load_not_complete',
          ('nothing retires while the oldest operation waits for loaded data',)),)


def _xgmi(first: int, links: int, directory: str, name: str) -> tuple[Entry, ...]:
    """Return the entries of links between sockets, at most 16 lanes of 32 Gbit/s each.

    The rate is that of EPYC 9004 (Lenovo Press LP1852: four links, 512 GB/s in both directions);
    firmware may set fewer lanes or a lower rate, which no register that Linux reads shows.
    """
    return tuple(
        Entry(LINK_TX, 'event=%#x,umask=0xf3e' % (first + 0x40 * link),
              'Linux, %s/data-fabric.json: local_socket_outbound_data_beats_%s' % (
                  directory, name.replace('N', str(link))),
              ('units of 64 bytes', 'compared with the highest rate of the links'), 'amd_df', 64,
              rated_bytes_per_sec=64e9)
        for link in range(links))


def _arm(key: str, title: str, cpuid: str, document: str, *entries: Entry) -> Row:
    """Return the row of a CPU of Arm's architecture, which has these codes for all of them."""
    return Row(key, title, cpuid, (
        Entry(CYCLES, 'event=0x11', document, (), 'armv8_*'),
        Entry(INSTRUCTIONS, 'event=0x8', document, (), 'armv8_*'),
        *entries,
        Entry(STALLED_CYCLES, 'event=0x24', document,
              ('any back-end resource, not memory alone',), 'armv8_*')))


def _neoverse(key: str, title: str, part: int) -> Row:
    document = 'Arm %s TRM, PMU events' % title
    return _arm(
        key, title, 'ARM-0x41-%#x' % part, document,
        Entry(LOCAL_DRAM, 'event=0x37', document,
              (SUBTRACT_REMOTE, 'reads only; approximate, remote_dram counts remote caches too'),
              'armv8_*', None, REMOTE_DRAM),
        Entry(REMOTE_DRAM, 'event=0x31', document,
              ("another chip's memory or caches: DRAM and cache together",), 'armv8_*'))


_NHM_DOC = 'Intel SDM vol. 3B, Nehalem: MEM_UNCORE_RETIRED'
_WSM_DOC = 'Intel perfmon, %s: MEM_UNCORE_RETIRED'
# Intel's list of this CPU has none of them (seen 2026-11-28).
_WSM_DP_DOC = 'libpfm4, wsm_dp: MEM_UNCORE_RETIRED'
_WITH_CACHE_HITS = 'local_dram counts remote cache hits too'

ROWS = (
    Row('nehalem-ep', 'Nehalem-EP', r'GenuineIntel-6-1[AEF]',
        _retired(0x0f, _NHM, _NHM_DOC, HITM) + _RESOURCE),
    Row('nehalem-ex', 'Nehalem-EX', r'GenuineIntel-6-2E',
        _retired(0x0f, _NHM, _NHM_DOC, HITM) + _RESOURCE),
    Row('westmere-dp', 'Westmere-DP', r'GenuineIntel-6-2C',
        _retired(0x0f, (0x08, 0x10), _WSM_DP_DOC, HITM, _WITH_CACHE_HITS) + _RESOURCE),
    Row('westmere-sp', 'Westmere-SP', r'GenuineIntel-6-25',
        _retired(0x0f, (0x10, 0x20), _WSM_DOC % 'Westmere-EP-SP', HITM) + _RESOURCE),
    # libpfm4 treats Westmere-EX as wsm_dp, where remote DRAM is 0x10, but Intel's list has 0x20.
    Row('westmere-ex', 'Westmere-EX', r'GenuineIntel-6-2F',
        _retired(0x0f, (0x08, 0x20), _WSM_DOC % 'Westmere-EX', HITM, _WITH_CACHE_HITS)
        + _RESOURCE),
    Row('sandybridge-ep', 'Sandy Bridge-EP', r'GenuineIntel-6-2D',
        _retired(0xd3, _UOPS, 'Intel perfmon, Jaketown: ' + _LLC_MISS)
        + _SNB_CORE + _IMC_CAS + _DCLK_FIXED + _QPI),
    # libpfm4's local DRAM is 0x01 here (snoop not needed or missed), but Intel's list has 0x03,
    # which includes snoops that hit but did not forward.
    Row('ivybridge-ep', 'Ivy Bridge-EP', r'GenuineIntel-6-3E',
        _retired(0xd3, (0x3, 0xc), 'Intel perfmon, Ivytown: ' + _LLC_MISS)
        + _SNB_CORE + _IMC_CAS + _DCLK_FIXED + _QPI),
    Row('haswell-ep', 'Haswell-EP', r'GenuineIntel-6-3F',
        _retired(0xd3, _UOPS, 'Intel perfmon, Haswell-X: ' + _L3_MISS_UOPS,
                 'errata HSM30, HSM74 may undercount')
        + _SNB_CORE + _IMC_CAS + _DCLK + _QPI_HSX),
    Row('broadwell-ep', 'Broadwell-EP', r'GenuineIntel-6-4F',
        _retired(0xd3, _UOPS, 'Intel perfmon, Broadwell-X: ' + _L3_MISS_UOPS,
                 'erratum BDE70 may undercount')
        + _SNB_CORE + _IMC_CAS + _DCLK + _QPI_HSX),
    _server('skylake-sp', 'Skylake-SP', r'GenuineIntel-6-55-[01234]', _SKX_UNCORE),
    _server('cascadelake-sp', 'Cascade Lake-SP', r'GenuineIntel-6-55-[56789ABCDEF]', _SKX_UNCORE),
    _server('icelake-sp', 'Ice Lake-SP', r'GenuineIntel-6-6[AC]',
            _imc(('event=0x4,umask=0xf',), ('event=0x4,umask=0x30',),
                 'Intel perfmon, Ice Lake-SP uncore: UNC_M_CAS_COUNT')
            + _DCLK + _UPI + _CHA_ICX)._replace(channels_max=8),
    _server('sapphirerapids', 'Sapphire Rapids', r'GenuineIntel-6-8F', _SPR_UNCORE),
    _server('emeraldrapids', 'Emerald Rapids', r'GenuineIntel-6-CF', _SPR_UNCORE),
    _server('graniterapids', 'Granite Rapids', r'GenuineIntel-6-A[DE]', _LOCAL_CXL + _GNR_UNCORE,
            _LOADS_CXL),
    _forest('sierraforest', 'Sierra Forest', r'GenuineIntel-6-AF', _SRF_CORE),
    # Of MEM_BOUND_STALLS_LOAD, Intel's list has no sum of all that miss L3 (seen 2026-11-28).
    _forest('clearwaterforest', 'Clearwater Forest', r'GenuineIntel-6-DD', _SRF_CORE[:2]),
    Row('zen1', 'AMD Zen 1', r'AuthenticAMD-23-([12]?[0-9A-F])',
        _amd_core(0x43, 'AMD PPR family 17h, PMCx043, by analogy with Zen 2',
                  _DEMAND_FILLS + '; neither libpfm4 nor Linux lists it for Zen 1')
        + _AMD_DF),
    # Dhyana has Zen 1's cores. Linux drives its counters as AMD's (arch/x86/events/amd), but has
    # no list of its events (seen 2026-11-28).
    Row('hygon', 'Hygon Dhyana', r'HygonGenuine-24-[0-9A-F]+',
        _amd_core(0x43, 'AMD PPR family 17h, PMCx043, by analogy with Zen 1 and 2', _DEMAND_FILLS)
        + _AMD_DF),
    Row('zen2', 'AMD Zen 2', r'AuthenticAMD-23-[3-9A-F][0-9A-F]',
        _amd_core(0x43, 'AMD PPR family 17h model 31h, PMCx043', _DEMAND_FILLS) + _AMD_DF),
    Row('zen3', 'AMD Zen 3', r'AuthenticAMD-25-([245]?[0-9A-F])',
        _amd_core(0x44, 'AMD PPR family 19h model 01h, PMCx044', ANY_FILLS) + _AMD_DF),
    Row('zen4', 'AMD Zen 4', r'AuthenticAMD-25-([167A][0-9A-F])',
        _amd_core(0x44, 'AMD PPR family 19h model 11h, PMCx044', ANY_FILLS, _WITH_CXL)
        + _ZEN4_STALLS + _AMD_UMC + _xgmi(0xb5f, 8, 'amdzen4', 'linkN')),
    Row('zen5', 'AMD Zen 5', r'AuthenticAMD-26-([12467]?[0-9A-F])',
        _amd_core(0x44, 'AMD PPR family 1Ah, PMCx044', ANY_FILLS, _WITH_CXL) + _ZEN4_STALLS
        + _AMD_UMC + _xgmi(0xd5f, 6, 'amdzen5', 'link_N')),
    # Linux has no list of its data fabric (seen 2026-11-28).
    Row('zen6', 'AMD Zen 6', r'AuthenticAMD-26-[0-9A-F]+',
        _amd_core(0x44, 'Linux, amdzen6/load-store.json: ls_any_fills_from_sys', ANY_FILLS,
                  _WITH_CXL)
        + _AMD_UMC),
    _neoverse('neoverse-n1', 'Neoverse N1', 0xd0c),
    _neoverse('neoverse-v1', 'Neoverse V1', 0xd40),
    _neoverse('neoverse-n2', 'Neoverse N2', 0xd49),
    _neoverse('neoverse-v2', 'Neoverse V2', 0xd4f),
    _neoverse('neoverse-v3', 'Neoverse V3', 0xd84),
    _neoverse('neoverse-n3', 'Neoverse N3', 0xd8e),
    # No public list of these has an event of remote accesses (seen 2026-11-28).
    _arm('ampereone', 'AmpereOne', 'ARM-0xc0-0xac[34]',
         'Linux, pmu-events of ampereone: of the architecture'),
    _arm('kunpeng920', 'Kunpeng 920', 'ARM-0x48-0xd01',
         'Linux, pmu-events of hip08: of the architecture'),
)

#: Caveat of an event whose PMU's name ends in the number of the node that it counts.
NODE_IN_NAME = 'node in name'
#: Caveat of an event whose PMU counts the node of the CPU that its ``cpumask`` names.
NODE_OF_CPU = 'node of its CPU'
#: hisi_uncore_ddrc_pmu.c names the boxes by die, and counts each on a CPU of its die; a flux is of
#: 32 bytes (openEuler's hip09/uncore-ddrc-metric.json).
_HISI_DDRC = 'hisi_sccl*_ddrc*'
#: nvidia_cspmu.c; cmem_rd_data is in units of 32 bytes (NVIDIA Grace Performance Tuning Guide).
_NVIDIA_SCF, _CPU_TRAFFIC = 'nvidia_scf_pmu_[0-9]*', ('traffic of CPUs, not of GPUs',)
#: Names that kernels export in ``/sys/bus/event_source/devices/PMU/events``, by
#: role: (PMU pattern, event name, bytes per count or None, caveats). If the kernel
#: exports a scale in bytes, KiB or MiB, that is used instead of the bytes given here.
#: The names ``local_dram``, ``remote_dram``, ``cas_reads`` and ``cas_writes`` are
#: ours. Any PMU driver that can count them may export them, as the emulated
#: machine's does; the last two come from one PMU for each node.
SYSFS_NAMES: dict[str, tuple[SysfsName, ...]] = {
    LOCAL_DRAM: (('*', 'local_dram', None, ()),),
    REMOTE_DRAM: (('*', 'remote_dram', None, ()),
                  ('armv8_*', 'remote_access', None,
                   ("another chip's memory or caches: DRAM and cache together",))),
    CYCLES: (('cpu', 'cpu-cycles', None, ()), ('armv8_*', 'cpu_cycles', None, ()),
             ('*', 'cycles', None, ())),
    INSTRUCTIONS: (('cpu', 'instructions', None, ()), ('armv8_*', 'inst_retired', None, ()),
                   ('*', 'instructions', None, ())),
    STALLED_CYCLES: (('cpu', 'stalled-cycles-backend', None,
                      ('any back-end resource, not memory alone',)),
                     ('armv8_*', 'stall_backend', None,
                      ('any back-end resource, not memory alone',))),
    MEM_READ: (('uncore_imc_[0-9]*', 'cas_count_read', 64, (PACKAGE,)),
               ('uncore_imc_[0-9]*', 'cas_count_read_sch0', 64, (PACKAGE,)),
               ('uncore_imc_[0-9]*', 'cas_count_read_sch1', 64, (PACKAGE,)),
               ('uncore', 'qmc_normal_reads_any', 64, (PACKAGE,)),
               ('*_imc_[0-9]*', 'cas_reads', 64, (NODE_IN_NAME,)),
               (_HISI_DDRC, 'flux_rd', 32, (NODE_OF_CPU,)),
               (_NVIDIA_SCF, 'cmem_rd_data', 32, _CPU_TRAFFIC)),
    MEM_WRITE: (('uncore_imc_[0-9]*', 'cas_count_write', 64, (PACKAGE,)),
                ('uncore_imc_[0-9]*', 'cas_count_write_sch0', 64, (PACKAGE,)),
                ('uncore_imc_[0-9]*', 'cas_count_write_sch1', 64, (PACKAGE,)),
                ('uncore', 'qmc_writes_full_any', 64, (PACKAGE, 'partial writes are left out')),
                ('*_imc_[0-9]*', 'cas_writes', 64, (NODE_IN_NAME,)),
                (_HISI_DDRC, 'flux_wr', 32, (NODE_OF_CPU,)),
                (_NVIDIA_SCF, 'cmem_wr_total_bytes', 1, _CPU_TRAFFIC)),
}

#: Layouts of core PMUs that this machine lacks, with which ``--cpu`` encodes the events
#: of another machine (Documentation/ABI/testing/sysfs-bus-event_source-devices-format).
#: The layout of an uncore box differs between models, so its terms are shown as they are.
DEFAULT_FORMATS: tuple[tuple[str, dict[str, str]], ...] = (
    ('cpu', {'event': 'config:0-7', 'umask': 'config:8-15', 'cmask': 'config:24-31'}),
    ('armv8_*', {'event': 'config:0-15'}),
)
