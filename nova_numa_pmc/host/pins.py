# SPDX-License-Identifier: Apache-2.0
"""Evaluate the pins of single threads in a running guest's XML: those to all CPUs hold nothing."""

from __future__ import annotations

from nova_numa_pmc.model import Guest

#: The elements of ``<cputune>``, by what the names of the threads' groups begin with.
KINDS = {'vcpu': 'vcpupin', 'emulator': 'emulatorpin', 'iothread': 'iothreadpin'}


def kind(name: str) -> str:
    """Return the element of ``<cputune>`` that pins the group of this name ('vcpu0')."""
    return KINDS[name.rstrip('0123456789')]


def without_full_pins(guest: Guest, online: frozenset[int]) -> Guest:
    """Return the guest without pins to every CPU that it may use.

    ``virsh vcpupin GUEST N r`` leaves these: libvirt takes no pin out of a running guest's XML.

    :param online: the host's CPUs; empty: not known, and then each pin counts
    """
    wide = online if guest.allowed_cpus is None else guest.allowed_cpus & online
    remaining = tuple(pin for pin in guest.pins if not pin[1] >= wide)
    if not wide or remaining == guest.pins:
        return guest
    kinds = {kind(name) for name, _ in remaining}
    vcpus = [cpus for name, cpus in remaining if name.startswith('vcpu')]
    return guest._replace(
        pins=remaining,
        pinned_cpus=frozenset[int]().union(*vcpus) or None,
        placed_by=tuple(by for by in guest.placed_by if by in kinds or by not in KINDS.values()),
    )


def may_hold(guest: Guest) -> bool:
    """Return whether a guest that we placed is still ours to hold; overrides do not count.

    Pins of single threads leave the others to us, and numatune the CPUs.
    """
    return set(guest.placed_by) <= {*KINDS.values(), 'numatune'}
