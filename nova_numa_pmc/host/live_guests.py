# SPDX-License-Identifier: Apache-2.0
"""Read the running guests from libvirt's live XML if libvirt answers, else from status files.

libvirt's API is the documented source of a guest's definition, but does not report the guest's
process: the pid, the threads and a job that has just begun are only in the status file, which can
be read without waiting. So the status file shows *that* a guest runs and what its process does,
and libvirt's XML shows what the guest *is*. The XML is only used if libvirt was queried after this
version of the status file was written. Both then contain the same document, whereas after a change
without an event the status file is the newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import CpusetError, GuestGone
from nova_numa_pmc.host import allowed, guests, libvirt_events

if TYPE_CHECKING:
    from nova_numa_pmc import model
    from nova_numa_pmc.host.files import Identity

#: Fields that are taken from the live XML.
_DEFINITION = (
    'vcpus',
    'memory_bytes',
    'vcpus_max',
    'allowed_cpus',
    'page_bytes',
    'locked',
    'devices',
    'iothreads',
    'extra_specs',
    'flavor',
    'preallocated',
    'memory_max_bytes',
    'partition',
)
#: Fields that are taken from the live XML if they are set there, because numad's advice is only in
#: the status file.
_PLACED = ('placed_by', 'numatune_nodes', 'mem_bound', 'pinned_cpus', 'pins')
#: State of a guest of whose process only the pid is known; such a guest is not moved.
_STATE_UNKNOWN = 'unknown'


class LiveGuests:
    """Reads the running guests.

    :param listener: receiver of libvirt's events, or None to only read status files
    """

    def __init__(self, root: str = '/', listener: libvirt_events.Listener | None = None) -> None:
        self._root = root
        self._listener = listener
        self._status_files = guests.StatusFiles(root)
        self._grants = allowed.Grants(root)
        self._live: dict[str, libvirt_events.GuestEvent] = {}  # by name
        #: {name: the guest in the status file, that in the live XML, and both merged}
        self._merged: dict[str, tuple[model.Guest, model.Guest, model.Guest]] = {}
        #: {name: identity of the status file for which the XML was last requested}
        self._requested: dict[str, Identity | None] = {}

    def update(self, event: libvirt_events.GuestEvent) -> None:
        """Store the guest that libvirt's XML describes."""
        if event.guest is not None:
            self._live[event.name] = event

    def read(self) -> tuple[list[model.Guest], list[str]]:
        """Return (guests sorted by file name, problems), as :meth:`guests.StatusFiles.read`."""
        entries, problems = self._status_files.entries()
        running = []
        for name, identity, guest, problem in entries:
            live = self._live_guest(name, identity)
            if guest is not None:
                guest = guest if live is None else self._merge(name, guest, live)
            elif problem is not None and live is not None:
                # The status file cannot be understood.
                guest, problem = self._from_live_xml(live)
            if guest is not None:
                running.append(guest)
            if problem is not None:
                problems.append(problem)
        names = {name for name, *_ in entries}
        for cache in (self._live, self._requested, self._merged):
            for name in cache.keys() - names:
                del cache[name]
        return guests.without_full_pins(self._grants.apply(running), self._root), problems

    def _live_guest(self, name: str, identity: Identity | None) -> model.Guest | None:
        """Return the guest in libvirt's XML for this version of the status file.

        Otherwise return None and request the XML, once for each version.
        """
        event = self._live.get(name)
        if (
            event is not None
            and event.identity == identity
            and event.guest is not None
            and event.guest.name == name
        ):
            return event.guest
        if self._listener is not None and self._requested.get(name) != identity:
            self._requested[name] = identity
            self._listener.request_xml(name)
        return None

    def _merge(self, name: str, guest: model.Guest, live: model.Guest) -> model.Guest:
        """Return what both descriptions say; the same record as long as both are the same."""
        if live.uuid != guest.uuid:
            return guest  # the XML is of another guest that had this name a moment ago
        before = self._merged.get(name)
        if before is not None and before[0] is guest and before[1] is live:
            return before[2]
        merged = guest._replace(
            **{field: getattr(live, field) for field in _DEFINITION},
            **{field: getattr(live, field) or getattr(guest, field) for field in _PLACED},
        )
        self._merged[name] = guest, live, merged
        return merged

    def _from_live_xml(self, live: model.Guest) -> tuple[model.Guest | None, str | None]:
        """Return (guest, None) from libvirt's XML and its pid file, or (None, problem).

        Both are None if the guest has no process.
        """
        try:
            guest = guests.with_process(live, self._root)
        except GuestGone:
            return None, None
        except CpusetError as error:
            return None, str(error)
        return guest._replace(state=_STATE_UNKNOWN), None
