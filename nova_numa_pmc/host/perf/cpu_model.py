# SPDX-License-Identifier: Apache-2.0
"""Read the machine's CPU model."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping


class CpuModel(Record):
    """A CPU model.

    :param cpuid: identifier such as ``GenuineIntel-6-2C-2`` (see :class:`event_table.Row`);
        '' if unknown
    :param name: model name from /proc/cpuinfo
    """

    cpuid: str
    name: str


def read(root: str = '/') -> CpuModel:
    """Return the model of the first CPU in ``/proc/cpuinfo``."""
    try:
        with open(os.path.join(root, 'proc/cpuinfo'), encoding='ascii', errors='replace') as file:
            text = file.read(16384)
    except OSError:
        return CpuModel('', 'unknown')
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
