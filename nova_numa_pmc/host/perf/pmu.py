# SPDX-License-Identifier: Apache-2.0
"""Encode events by the formats that the kernel exports for its PMUs.

Source: Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import TYPE_CHECKING

from nova_numa_pmc import exceptions
from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.host import files
from nova_numa_pmc.host.perf import event_table
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping


DEVICES = 'sys/bus/event_source/devices'
CONFIGS = ('config', 'config1', 'config2')

_FORMAT = re.compile(r'(config[12]?):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)')
_TERM = re.compile(r'([A-Za-z_][A-Za-z0-9_-]*)(?:=(0[xX][0-9a-fA-F]+|[0-9]+))?')
_UNIT_BYTES = {'Bytes': 1, 'KiB': 1 << 10, 'MiB': 1 << 20}


class Pmu(Record):
    """One PMU.

    :param type: perf_event_attr.type; None if this machine does not have the PMU
    :param formats: {term: layout}, such as ``config:0-7,32-35``
    :param events: {exported name: terms}
    :param cpus: CPUs to count on, one for each package (``cpumask``); None for a
        core PMU, which counts on any CPU, thread or control group
    :param bytes_per_count: {exported name: bytes that one count stands for}, where known
    """

    name: str
    type: int | None
    formats: dict[str, str]
    events: dict[str, str]
    cpus: tuple[int, ...] | None
    bytes_per_count: dict[str, float]


def parse_terms(text: str) -> list[tuple[str, int]]:
    """Return perf terms, such as ``event=0xd3,umask=0x1,edge``, as (name, value) pairs.

    A term without a value has the value 1.

    :raises EventError: the text is not a list of terms, or one needs a parameter (``=?``)
    """
    terms = []
    for part in text.strip().split(','):
        match = _TERM.fullmatch(part.strip())
        if not match:
            raise exceptions.EventError('not a perf term: %.40r in %.80r' % (part, text))
        terms.append(
            (
                match[1],
                int(match[2], 0)
                if match[2] and match[2][:2] in ('0x', '0X')
                else int(match[2] or 1),
            )
        )
    return terms


def _bits(layout: str) -> tuple[str, list[int]]:
    match = _FORMAT.fullmatch(layout.strip())
    if not match:
        raise exceptions.EventError('not a PMU format: %.60r' % layout)
    bits: list[int] = []
    for part in match[2].split(','):
        first, _, last = part.partition('-')
        bits.extend(range(int(first), int(last or first) + 1))
    if not bits or max(bits) > 63 or len(bits) > 64:
        raise exceptions.EventError('not a PMU format: %.60r' % layout)
    return match[1], bits


def encode(pmu: Pmu, text: str) -> tuple[int, int, int]:
    """Return terms encoded in the PMU's layout, as (config, config1, config2).

    :raises EventError: the PMU lacks a term, or a value is too wide for its term
    """
    configs = dict.fromkeys(CONFIGS, 0)
    for name, value in parse_terms(text):
        if name in CONFIGS:
            field, bits = name, list(range(64))
        elif name in pmu.formats:
            field, bits = _bits(pmu.formats[name])
        else:
            raise exceptions.EventError('the PMU %s has no term %r' % (pmu.name, name))
        if value >> len(bits):
            raise exceptions.EventError(
                '%#x is too wide for %s of the PMU %s' % (value, name, pmu.name)
            )
        for position, bit in enumerate(bits):
            configs[field] |= (value >> position & 1) << bit
    config, config1, config2 = (configs[name] for name in CONFIGS)
    return config, config1, config2


def absent_pmu(name: str) -> Pmu:
    """Return a stand-in for a PMU that this machine lacks, which can encode but not count."""
    known = (
        formats
        for pattern, formats in event_table.DEFAULT_FORMATS
        if fnmatch.fnmatchcase(name, pattern)
    )
    return Pmu(name, None, next(known, {}), {}, None, {})


def _read_directory(path: str) -> dict[str, str]:
    texts = ((name, files.read_optional(path, name)) for name in files.list_names(path))
    return {name: text for name, text in texts if text is not None}


def _event_files(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return ({event: terms}, {event: bytes that one count stands for}) from ``events/``."""
    events: dict[str, str] = {}
    bytes_per_count: dict[str, float] = {}
    for name, text in texts.items():
        if name.endswith(('.scale', '.unit', '.snapshot', '.per-pkg')):
            continue
        events[name] = text
        unit = _UNIT_BYTES.get(texts.get(name + '.unit', ''))
        try:
            scale = float(texts.get(name + '.scale', ''))
        except ValueError:
            continue
        if unit and 0 < scale < float('inf'):
            bytes_per_count[name] = scale * unit
    return events, bytes_per_count


def read_pmu(path: str, name: str) -> Pmu | None:
    """Return one PMU; None if its files are missing or cannot be parsed."""
    kind = files.read_optional(path, 'type')
    if not kind or not kind.isdecimal() or len(kind) > 9:
        return None
    mask = files.read_optional(path, 'cpumask')
    try:
        cpus = tuple(sorted(parse_cpulist(mask))) if mask else None
    except exceptions.CpuListError:
        return None
    events, bytes_per_count = _event_files(_read_directory(os.path.join(path, 'events')))
    return Pmu(
        name,
        int(kind),
        _read_directory(os.path.join(path, 'format')),
        events,
        cpus,
        bytes_per_count,
    )


def read_pmus(root: str = '/') -> dict[str, Pmu]:
    """Return the PMUs of a machine by name; empty if it has none."""
    devices = os.path.join(root, DEVICES)
    pmus = (
        (name, read_pmu(os.path.join(devices, name), name)) for name in files.list_names(devices)
    )
    return {name: pmu for name, pmu in pmus if pmu is not None}


def matching(pmus: Mapping[str, Pmu], pattern: str) -> list[Pmu]:
    """Return the PMUs whose names match a shell pattern, in natural order."""
    names = [name for name in pmus if fnmatch.fnmatchcase(name, pattern)]
    return [
        pmus[name]
        for name in sorted(
            names,
            key=lambda name: [
                int(part) if part.isdecimal() else part for part in re.split(r'(\d+)', name)
            ],
        )
    ]
