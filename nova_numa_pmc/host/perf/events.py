# SPDX-License-Identifier: Apache-2.0
"""Choose the events to count on this CPU, with their roles, codes and sources.

For every role (:data:`rates.ROLES`), the first of these sources that has an event is used:
the operator's override, the names that the kernel exports, our table.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from nova_numa_pmc import exceptions
from nova_numa_pmc.core import pressure, rates
from nova_numa_pmc.host import files, topology
from nova_numa_pmc.host.perf import event_table, pmu
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    Missing = list[tuple[str, str]]

OVERRIDE, KERNEL, TABLE = 'override', 'kernel', 'table'

WHY_MEDIATED = (
    "KVM's mediated vPMU is enabled: an open core event would stop guests from starting: "
    'load kvm_intel or kvm_amd with enable_mediated_pmu=0 to count %s'
)
_RAW_TYPE = 4  # PERF_TYPE_RAW: perf_event.h
_NODE_NUMBER = re.compile(r'_(\d{1,5})$')


class CpuModel(Record):
    """A CPU model.

    :param cpuid: identifier such as ``GenuineIntel-6-2C-2`` (see :class:`event_table.Row`);
        '' if unknown
    :param name: model name from /proc/cpuinfo
    """

    cpuid: str
    name: str


class Event(Record):
    """One event, ready to be opened.

    :param type, config, config1, config2: fields of perf_event_attr. The type is None if this
        machine lacks the PMU, and config is None if its layout is not known here
    :param cpus: CPUs to count an uncore event on; None for a core event
    :param node: node that an uncore event belongs to, if its PMU's name shows it; None for the
        node of the CPU that it is counted on
    :param bytes_per_count: bytes that one count stands for; None if it is not an amount of data
    :param minus: role whose count is to be subtracted, if any
    :param rated_bytes_per_sec: what the link can carry, if it has no clock to count
    :param source: one of override, kernel, table
    """

    role: str
    name: str
    pmu: str
    type: int | None = None
    config: int | None = None
    config1: int = 0
    config2: int = 0
    cpus: tuple[int, ...] | None = None
    node: int | None = None
    bytes_per_count: float | None = None
    minus: str | None = None
    source: str = TABLE
    document: str = ''
    caveats: tuple[str, ...] = ()
    rated_bytes_per_sec: float | None = None


class EventSelection(Record):
    """Events that can be counted.

    :param row: the CPU's row of the table; None if the table does not know the CPU
    :param events: events to count; those of one role are added up
    :param missing: (role, reason) of each role that cannot be counted
    """

    cpu: CpuModel
    row: event_table.Row | None
    events: tuple[Event, ...]
    missing: tuple[tuple[str, str], ...]


def find_row(cpuid: str) -> event_table.Row | None:
    """Return the table's row of a CPU; None if there is none.

    :param cpuid: a cpuid or a row's key (``skylake-sp``)
    """
    rows = (
        row
        for row in event_table.ROWS
        if row.key == cpuid or re.match('(?:%s)(?:-|$)' % row.cpuid, cpuid)
    )
    return next(rows, None)


def has_mediated_vpmu(root: str = '/') -> bool:
    """Return whether KVM hands the core counters to its guests (Linux 7.0, off by default).

    If it does, an open event that counts guest mode makes the first vCPU of the
    next guest fail with EBUSY, and while a guest runs, opening such an event fails
    with EOPNOTSUPP (kernel/events/core.c, mediated_pmu_account_event). The modules
    of both vendors have the parameter ``enable_mediated_pmu``.
    """
    return any(
        files.read_optional(root, 'sys/module/%s/parameters/enable_mediated_pmu' % module)
        in ('Y', 'y', '1')
        for module in ('kvm_intel', 'kvm_amd', 'kvm')
    )


def select_events(
    root: str = '/', cpu: str | None = None, overrides: Mapping[str, str] | None = None
) -> EventSelection:
    """Choose the events of every role.

    :param cpu: cpuid or key of another CPU, to show what would be counted there (its
        events cannot be opened here); None for this machine's CPU
    :param overrides: {role: event}, where an event is written as in perf
        (``cpu/event=0xd3,umask=0x1/``, ``cpu/instructions/``, ``r53100f``), or is 'none' if
        the role is not to be counted
    :raises EventError: an override is not an event
    """
    for_this_host = cpu is None
    model = read_cpu_model(root) if cpu is None else CpuModel(cpu, 'unknown')
    pmus = pmu.read_pmus(root) if for_this_host else {}
    row = find_row(model.cpuid)
    if row and for_this_host and not topology.memory_only_nodes(root):
        entries = tuple(entry for entry in row.entries if not entry.of_slow_memory)
        row = row._replace(entries=entries)
    if row and not for_this_host:
        model = model._replace(name=row.title)
    overrides = overrides or {}
    selected: list[Event] = []
    missing: Missing = []
    is_mediated = for_this_host and has_mediated_vpmu(root)
    for role in rates.ROLES:
        events, reason = _find(role, pmus, row, overrides, for_this_host)
        if is_mediated and role in rates.CORE_ROLES:
            events, reason = (), WHY_MEDIATED % 'it'
        selected.extend(events)
        if not events:
            missing.append((role, reason))
    return EventSelection(model, row, tuple(selected), tuple(missing))


def _find(
    role: str,
    pmus: Mapping[str, pmu.Pmu],
    row: event_table.Row | None,
    overrides: Mapping[str, str],
    for_this_host: bool,
) -> tuple[tuple[Event, ...], str]:
    """Return (events, reason why there are none)."""
    entries = [entry for entry in row.entries if entry.role == role] if row else []
    if role in overrides:
        spec = overrides[role].strip()
        if spec.lower() == 'none':
            return (), 'switched off by the configuration'
        chosen = _from_override(role, spec, pmus, entries)
        if role in rates.DATA_ROLES and not all(event.bytes_per_count for event in chosen):
            return (), (
                'the bytes of one count of %s are unknown: choose an event that the kernel '
                'exports with a scale in bytes' % spec
            )
        return chosen, ''
    exported = _from_kernel(role, pmus)
    if exported:
        return exported, ''
    if not row:
        return (), (
            'this CPU is not in the table of events, and the kernel exports no event for this: '
            'resctrl or page counts are used instead'
        )
    if not entries:
        return (), 'the table has no such event for %s' % row.title
    events = tuple(event for entry in entries for event in _from_entry(entry, pmus, for_this_host))
    if not events:
        return (), 'there is no PMU %s (no driver, or a virtual machine)' % entries[0].pmu
    return events, ''


def _from_override(
    role: str, spec: str, pmus: Mapping[str, pmu.Pmu], entries: Collection[event_table.Entry]
) -> tuple[Event, ...]:
    match = re.fullmatch(r'r([0-9a-fA-F]{1,16})', spec)
    if match:
        return (
            Event(
                role, spec, 'cpu', _RAW_TYPE, int(match[1], 16) & ~_REGISTER_BITS, source=OVERRIDE
            ),
        )
    match = re.fullmatch(r'([A-Za-z0-9_*?\[\]-]+)/([^/]+)/', spec)
    if match:
        boxes = pmu.matching(pmus, match[1])
        if not boxes:
            raise exceptions.EventError('%s: no PMU %s here' % (role, match[1]))
        return tuple(
            Event(
                role,
                spec,
                box.name,
                box.type,
                *pmu.encode(box, box.events.get(match[2], match[2])),
                box.cpus,
                bytes_per_count=_override_bytes_per_count(role, match[2], box, entries),
                source=OVERRIDE,
            )
            for box in boxes
        )
    raise exceptions.EventError(
        '%s: %.80r is not an event: write cpu/event=0xd3,umask=0x1/ or r53100f' % (role, spec)
    )


def _override_bytes_per_count(
    role: str, name: str, box: pmu.Pmu, entries: Iterable[event_table.Entry]
) -> float | None:
    """Return the bytes that one count of an override stands for.

    :param name: the event's exported name, or its terms
    :returns: None if it is no data, or if the bytes are not known
    """
    if role not in rates.DATA_ROLES:
        return None
    sizes = [
        *((entry.pmu, entry.bytes_per_count) for entry in entries),
        *((pattern, size) for pattern, _, size, _ in event_table.SYSFS_NAMES.get(role, ())),
        ('*', pressure.LINE_BYTES if role in rates.MEMORY_ROLES else None),
    ]
    return box.bytes_per_count.get(name) or next(
        (size for pattern, size in sizes if fnmatch.fnmatchcase(box.name, pattern)), None
    )


#: Bits 16-17, 20 and 22 of IA32_PERFEVTSELx (user, kernel, interrupt, enable).
#: Raw codes such as r53100f include them, but the kernel sets them itself and refuses
#: them in ``config`` (arch/x86/include/asm/perf_event.h).
_REGISTER_BITS = 0x530000


def register_code(event: Event) -> int:
    """Return an event's code as in the event-select register: 0x53100f for 0x100f."""
    return (event.config or 0) | _REGISTER_BITS


def _from_kernel(role: str, pmus: Mapping[str, pmu.Pmu]) -> tuple[Event, ...]:
    uncore = role in rates.UNCORE_ROLES
    events = []
    for pattern, name, bytes_per_count, caveats in event_table.SYSFS_NAMES.get(role, ()):
        for box in pmu.matching(pmus, pattern):
            if name not in box.events or uncore != (box.cpus is not None):
                continue
            try:
                events.append(_kernel_event(role, name, box, bytes_per_count, caveats))
            except exceptions.EventError:
                continue  # it needs a parameter or is malformed; the next source may have it
        if events and not uncore:
            break
    return tuple(events if uncore else events[:1])


def _kernel_event(
    role: str, name: str, box: pmu.Pmu, bytes_per_count: float | None, caveats: tuple[str, ...]
) -> Event:
    number = None
    if event_table.NODE_IN_NAME in caveats:
        number, caveats = _NODE_NUMBER.search(box.name), ()
    return Event(
        role,
        name,
        box.name,
        box.type,
        *pmu.encode(box, box.events[name]),
        box.cpus,
        int(number[1]) if number else None,
        box.bytes_per_count.get(name, bytes_per_count),
        None,
        KERNEL,
        'sysfs: %s/events/%s' % (box.name, name),
        caveats,
    )


def _from_entry(
    entry: event_table.Entry, pmus: Mapping[str, pmu.Pmu], for_this_host: bool
) -> list[Event]:
    """Return an entry's events, one for each box of its PMU."""
    uncore = entry.role in rates.UNCORE_ROLES
    boxes = [pmu.absent_pmu(entry.pmu)]
    if for_this_host:
        boxes = [box for box in pmu.matching(pmus, entry.pmu) if uncore == (box.cpus is not None)]
    events = []
    for box in boxes if uncore else boxes[:1]:
        event = Event(
            entry.role,
            entry.terms,
            box.name,
            box.type,
            cpus=box.cpus,
            bytes_per_count=entry.bytes_per_count,
            minus=entry.minus,
            document=entry.document,
            caveats=entry.caveats,
            rated_bytes_per_sec=entry.rated_bytes_per_sec,
        )
        if uncore and not for_this_host:
            events.append(event)
            continue
        layout = box if box.formats else box._replace(formats=pmu.absent_pmu(box.name).formats)
        try:
            config, config1, config2 = pmu.encode(layout, entry.terms)
        except exceptions.EventError:
            continue  # the driver lacks a term; the role may then be missing, with a reason
        events.append(event._replace(config=config, config1=config1, config2=config2))
    return events


def read_cpu_model(root: str = '/') -> CpuModel:
    """Return the model of the first CPU in ``/proc/cpuinfo``."""
    try:
        text = files.read_text(root, 'proc/cpuinfo', 16384) or ''
    except exceptions.TopologyError:
        text = ''
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(':')
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return CpuModel(_cpuid(fields), fields.get('model name', 'unknown'))


def _cpuid(fields: Mapping[str, str]) -> str:
    if 'CPU implementer' in fields:
        return 'ARM-%s-%s' % (
            fields['CPU implementer'].lower(),
            fields.get('CPU part', '').lower(),
        )
    numbers = [fields.get(name, '') for name in ('cpu family', 'model', 'stepping')]
    if not all(re.fullmatch(r'\d{1,4}', number, re.ASCII) for number in numbers):
        return ''
    family, model, stepping = (int(number) for number in numbers)
    return '%s-%d-%X-%X' % (fields.get('vendor_id', ''), family, model, stepping)
