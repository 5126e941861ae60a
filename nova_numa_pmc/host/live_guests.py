# SPDX-License-Identifier: Apache-2.0
"""Read the running guests: from libvirt's live XML if libvirt answers, else from status files.

libvirt's API is the documented source of a guest's definition, but knows nothing of its process:
the pid, the threads and a job that has just begun are only in the status file, which can be read
without waiting. So the file shows *that* a guest runs and what its process does, and libvirt what
the guest *is*, if libvirt was queried after this version of the file was written: both then hold
the same document, and after a change without an event the file is the newer one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import GuestGone
from nova_numa_pmc.host import files, guests, libvirt_events

if TYPE_CHECKING:
    from nova_numa_pmc.host.files import Identity

#: Fields taken from the live XML. numad's advice, one of the pins, is in the status file only.
_DEFINITION = (
    'vcpus',
    'memory_bytes',
    'vcpus_max',
    'allowed_cpus',
    'page_bytes',
    'locked',
    'pci_devices',
    'iothreads',
    'extra_specs',
    'flavor',
    'preallocated',
    'host_devices',
    'plugged_bytes',
)
_PLACED = ('placed_by', 'mem_nodes', 'mem_bound', 'pinned_cpus', 'pins')
#: State of a guest of which only the pid is known; it is not moved.
_STATE_UNKNOWN = 'unknown'


class LiveGuests:
    """Reads the running guests at each tick.

    :param listener: receives libvirt's events, None: status files are read alone
    """

    def __init__(self, root: str = '/', listener: libvirt_events.Listener | None = None) -> None:
        self._root, self._listener = root, listener
        self._files = guests.StatusFiles(root)
        self._live: dict[str, libvirt_events.GuestEvent] = {}  # by name
        #: Identities for which libvirt was queried, by name.
        self._requested: dict[str, Identity | None] = {}

    def update(self, change: libvirt_events.GuestEvent) -> None:
        """Take in libvirt's XML of a guest."""
        if change.guest is not None:
            self._live[change.name] = change

    def read(self) -> tuple[list[model.Guest], list[str]]:
        """Return (guests by file name, problems) as :meth:`guests.StatusFiles.read` does."""
        entries, problems = self._files.entries()
        running = []
        for name, identity, guest, problem in entries:
            live = self._live_guest(name, identity)
            if guest is not None:
                guest = guest if live is None else _merge(guest, live)
            elif problem is not None and live is not None:
                guest, problem = self._from_xml_alone(live), None  # the file cannot be understood
            if guest is not None:
                running.append(guest)
            if problem is not None:
                problems.append(problem)
        names = {name for name, *_ in entries}
        for kept in (self._live, self._requested):
            for name in kept.keys() - names:
                del kept[name]
        return guests.without_full_pins(running, self._root), problems

    def _live_guest(self, name: str, identity: Identity | None) -> model.Guest | None:
        """Return libvirt's XML of this very file; else request it, once for each."""
        change = self._live.get(name)
        if (
            change is not None
            and change.identity == identity
            and change.guest is not None
            and change.guest.name == name
        ):
            return change.guest
        if self._listener is not None and self._requested.get(name) != identity:
            self._requested[name] = identity
            self._listener.request_xml(name)
        return None

    def _from_xml_alone(self, live: model.Guest) -> model.Guest | None:
        """Return a guest by libvirt's XML and its pid file; None: no process of it is found."""
        try:
            return live._replace(pid=guests.qemu_pid(live, self._root), state=_STATE_UNKNOWN)
        except GuestGone:
            return None


def identify(root: str, name: str) -> Identity | None:
    """Return the identity of a guest's status file, None: there is none.

    :param name: libvirt's, which allows no slash
    """
    try:
        return files.identity(os.path.join(root, guests.STATUS_DIRECTORY, name + '.xml'))
    except (OSError, ValueError):
        return None


def _merge(guest: model.Guest, live: model.Guest) -> model.Guest:
    if live.uuid != guest.uuid:
        return guest  # another guest of the same name, a moment ago
    return guest._replace(
        **{field: getattr(live, field) for field in _DEFINITION},
        **{field: getattr(live, field) or getattr(guest, field) for field in _PLACED},
    )
