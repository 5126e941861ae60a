# SPDX-License-Identifier: Apache-2.0
"""The record of a flavor that an operator describes."""

from __future__ import annotations

from nova_numa_pmc.record import Record


class Flavor(Record):
    """Size and extra specs of a flavor."""

    vcpus: int
    memory_bytes: int
    specs: dict[str, str]
