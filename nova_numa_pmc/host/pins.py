# SPDX-License-Identifier: Apache-2.0
"""Evaluate the pins of single threads in a running guest's XML.

A pin to all CPUs restricts nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc.model import Guest

#: The elements of ``<cputune>``, by the prefix of the names of the threads' control groups.
ELEMENTS = {'vcpu': 'vcpupin', 'emulator': 'emulatorpin', 'iothread': 'iothreadpin'}


def pin_element(name: str) -> str:
    """Return the element of ``<cputune>`` that pins the control group with this name ('vcpu0')."""
    return ELEMENTS[name.rstrip('0123456789')]


def without_full_pins(guest: Guest, online: frozenset[int]) -> Guest:
    """Return the guest without pins to every CPU that it may use.

    ``virsh vcpupin GUEST N r`` leaves such pins behind, because libvirt does not remove a pin from
    a running guest's XML.

    :param online: the host's online CPUs; if empty, they are not known, and every pin counts
    """
    wide = online if guest.limit_cpus is None else guest.limit_cpus & online
    remaining = tuple(pin for pin in guest.pins if not pin[1] >= wide)
    if not wide or remaining == guest.pins:
        return guest
    elements = {pin_element(name) for name, _ in remaining}
    vcpus = [cpus for name, cpus in remaining if name.startswith('vcpu')]
    return guest._replace(
        pins=remaining,
        pinned_cpus=frozenset[int]().union(*vcpus) or None,
        placed_by=tuple(
            code for code in guest.placed_by if code in elements or code not in ELEMENTS.values()
        ),
    )


def without_full_binding(guest: Guest, with_memory: frozenset[int] | None) -> Guest:
    """Return the guest without a ``<numatune>`` that binds its memory to all nodes.

    :param with_memory: ids of the nodes that have memory; None: unknown, and every binding counts
    """
    if (
        not guest.mem_bound
        or not with_memory
        or not with_memory <= set(guest.numatune_nodes)
        or {'memnode', 'numad'} & set(guest.placed_by)
    ):
        return guest
    return guest._replace(
        placed_by=tuple(code for code in guest.placed_by if code != 'numatune'),
        numatune_nodes=(),
        mem_bound=False,
    )
