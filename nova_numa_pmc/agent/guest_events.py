# SPDX-License-Identifier: Apache-2.0
"""Collect events of guests from libvirt, its status directory and the guests' control groups.

Any of the three sources may be missing; the next tick then finds what it would have reported.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, guests, inotify, libvirt_events, live_guests

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    from nova_numa_pmc import model

    #: The name of a guest and the id of its process.
    _Key = tuple[str, int | None]

#: Events that follow the first one within this time are handled together with it [s].
COALESCE_S = 0.2
_FILES = inotify.MOVED_TO | inotify.CREATE | inotify.DELETE | inotify.MODIFY
_GROUPS = inotify.MODIFY | inotify.CREATE
#: Prefix of :attr:`GuestEvents.source` if libvirt reports no events.
BY_STATUS_FILES = 'status files'


class GuestEvents:
    """Collects the names of guests that have changed, until they are handled.

    :param listener: a started receiver of libvirt's events; None: there is none
    """

    def __init__(
        self,
        root: str,
        log: logging.Logger,
        listener: libvirt_events.Listener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._log = log
        self._clock = clock
        self._listener = listener
        self.guests = live_guests.LiveGuests(root, listener)
        self._pending: set[str] = set()  # names of guests
        self._since_s = 0.0  # when the first of them was received
        self._directory_watch: int | None = None  # the watch of the status directory
        self._name_by_watch: dict[int, str] = {}  # watch of a group → name of its guest
        self._watches: dict[_Key, dict[str, int]] = {}  # guest → {path of a group: its watch}
        self._logged_source = ''
        try:
            self._inotify: inotify.Inotify | None = inotify.Inotify()
        except OSError as error:
            self._inotify = None
            self._log.warning(
                'inotify: %s: changes to guests are noticed only at each tick', error.strerror
            )

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when an event arrives."""
        return [source.fileno() for source in (self._inotify, self._listener) if source]

    @property
    def source(self) -> str:
        """Return the source of changes: 'libvirt', or 'status files', with the reason if known."""
        if self._listener is None:
            return BY_STATUS_FILES
        problem = self._listener.problem
        return '%s: %s' % (BY_STATUS_FILES, problem) if problem else 'libvirt'

    def collect(self) -> None:
        """Collect the pending events without waiting."""
        names: set[str] = set()
        if self._listener is not None:
            for guest_event in self._listener.pop_events():
                self.guests.update(guest_event)
                names.add(guest_event.name)
            self._log_source()
        if self._inotify is not None:
            self._watch_directory(self._inotify)
            for event in self._inotify.read():
                names |= self._names_of(event)
        if names and not self._pending:
            self._since_s = self._clock()
        self._pending |= names

    def due_in_s(self) -> float | None:
        """Return the seconds until the collected events are due; None: there are none."""
        if not self._pending:
            return None
        return max(0.0, self._since_s + COALESCE_S - self._clock())

    def pop_names(self) -> set[str]:
        """Return the names of the guests with events, and clear them."""
        names, self._pending = self._pending, set()
        return names

    def watch(self, running: Iterable[model.Guest]) -> set[str]:
        """Watch the groups of these guests, and those of no other guests.

        :returns: uuids of the watched guests; the other guests have to be read in every tick
        """
        by_key: dict[_Key, model.Guest] = {(guest.name, guest.pid): guest for guest in running}
        for key in self._watches.keys() - by_key.keys():
            self._unwatch(key)
        if self._inotify is None:
            return set()
        watched = set()
        for key, guest in by_key.items():
            if key not in self._watches:
                self._watch_groups(key, self._inotify)
            if self._watches.get(key):
                watched.add(guest.uuid)
        return watched

    def close(self) -> None:
        """Close the watches and let the listener end by itself."""
        if self._listener is not None:
            self._listener.close()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _log_source(self) -> None:
        source = self.source
        if source != self._logged_source and libvirt_events.CONNECTING not in source:
            self._logged_source = source
            self._log.info('the agent learns of changes to guests from %s', source)

    def _watch_directory(self, watcher: inotify.Inotify) -> None:
        if self._directory_watch is not None:
            return
        directory = os.path.join(self._root, guests.STATUS_DIRECTORY)
        try:
            self._directory_watch = watcher.add(directory, _FILES)
        except OSError:
            return  # libvirt has not created it yet, or there are no watches left
        self._pending.update(name[:-4] for name in os.listdir(directory) if name.endswith('.xml'))
        self._since_s = self._clock()

    def _names_of(self, event: inotify.InotifyEvent) -> set[str]:
        """Return the names of the guests that an event concerns."""
        if event.mask & inotify.OVERFLOW:
            return {name for name, _ in self._watches}
        if event.mask & inotify.IGNORED:
            if event.watch == self._directory_watch:
                self._directory_watch = None
            self._name_by_watch.pop(event.watch, None)
            return set()
        if event.watch == self._directory_watch:
            return {event.name[:-4]} if event.name.endswith('.xml') else set()
        name = self._name_by_watch.get(event.watch)
        if name is None:
            return set()
        if event.mask & inotify.CREATE and event.mask & inotify.IS_DIRECTORY:
            for key in [key for key in self._watches if key[0] == name]:
                self._unwatch(key)  # with a new group, all groups are listed and watched again
            return {name}
        return {name} if event.name.startswith('cpuset.') else set()

    def _watch_groups(self, key: _Key, watcher: inotify.Inotify) -> None:
        """Watch the groups of a guest, including any that are created meanwhile."""
        try:
            watches: dict[str, int] = {}
            self._watches[key] = watches
            former_paths: set[str] | None = None
            while True:
                groups = cgroups.find(key[1], self._root)
                paths = {groups.scope, groups.parent, *groups.thread_cgroups}
                if paths == former_paths:
                    return
                for path in paths - watches.keys():
                    watches[path] = watcher.add(path, _GROUPS)
                    self._name_by_watch[watches[path]] = key[0]
                former_paths = paths
        except (CpusetError, OSError) as error:
            self._unwatch(key)
            if getattr(error, 'errno', None) == errno.ENOSPC:
                self._watches[key] = {}  # no watches left: the guest is read in every tick

    def _unwatch(self, key: _Key) -> None:
        for watch in self._watches.pop(key, {}).values():
            if self._name_by_watch.pop(watch, None) is not None and self._inotify is not None:
                self._inotify.remove(watch)
