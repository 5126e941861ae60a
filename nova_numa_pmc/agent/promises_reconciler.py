# SPDX-License-Identifier: Apache-2.0
"""Keep the promises file up to date while guests come and go.

The hook does so at each start. Between starts, guests that ended, or that started while the hook
was not installed, would go unnoticed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core import promising
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import CpusetError, GuestGone, StateError
from nova_numa_pmc.host import allowed, cgroups, files, guests, holding
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from logging import Logger

    from nova_numa_pmc import model
    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.host.files import Identity
    from nova_numa_pmc.state.promises_file import HostPromises


class PromisesReconciler:
    """Reads the promises file, and takes its lock only if something has changed."""

    def __init__(self, host_options: HostOptions, root: str, log: Logger) -> None:
        self.host_options, self._root, self._log = host_options, root, log
        #: {name of a guest: identity of its status file, which cannot be read}; such a file is
        #: tried again once it has changed.
        self._unreadable: dict[str, Identity | None] = {}
        #: Identity of the file (None: there is none), and the promises in it.
        self._cached: tuple[Identity | None, HostPromises] | None = None
        #: {(uuid, pid): how others had placed the guest when it was last read}.
        self._placed: dict[model.RunId, tuple[str, ...]] = {}

    def read(self, host: model.Topology, boottime_ns: int) -> tuple[HostPromises, list[str]]:
        """Return the current promises, and problems.

        :param boottime_ns: CLOCK_BOOTTIME
        :raises StateError: the running guests or the promises cannot be read
        """
        host_promises = self._read_unlocked()
        remaining, names_without = decide.without_gone_guests(
            host_promises.promises if host_promises else {},
            self.host_options,
            self._root,
            boottime_ns,
        )
        status_files = {
            name: guests.runtime_file_identity(self._root, name, '.xml') for name in names_without
        }
        if (
            host_promises is not None
            and len(remaining) == len(host_promises.promises)
            and status_files.items() <= self._unreadable.items()
        ):
            return host_promises, []
        before = dict(host_promises.promises) if host_promises else {}
        try:
            with promises_file.locked(self.host_options, self._root) as draft:
                problems = decide.reconcile(
                    draft, host, self.host_options, self._root, boottime_ns=boottime_ns
                )
        except StateError as error:  # busy, or the file system is full
            if host_promises is None:
                raise
            return host_promises, [str(error)]  # the next tick tries again
        names = {promise.name for promise in draft.promises.values()}
        self._unreadable = {
            name: identity for name, identity in status_files.items() if name not in names
        }
        self._log_changes(before, draft.promises)
        return draft.with_promises({}), problems

    def update_changed_guests(
        self,
        host_promises: HostPromises,
        running: Collection[model.Guest],
        host: model.Topology,
        may_be_wide: bool = True,
    ) -> HostPromises:
        """Update the promises of guests whose vCPUs or memory were plugged in or unplugged.

        Must not be called while a guest is being moved, because its promise is compared with the
        one that it had when the move began.

        :param may_be_wide: whether guests are widened; otherwise, widened guests go home, as an
            overridden guest always does
        :returns: the current promises
        """
        changed = []
        self._log_placed(running)
        for guest in running:
            before = host_promises.promises.get(guest.uuid)
            if before and before.started:
                after = promising.updated_promise(before, guest, host)
                if guest.override or not may_be_wide:
                    after = after._replace(widened_nodes=())
                if after != before:
                    changed.append((before, after))
        if not changed:
            return host_promises
        try:
            with promises_file.locked(self.host_options, self._root) as draft:
                changed = [
                    (before, after)
                    for before, after in changed
                    if draft.promises.get(before.uuid) == before
                ]
                for _, after in changed:
                    draft.put(after)
        except StateError:
            return host_promises  # the next tick tries again
        by_uuid = {guest.uuid: guest for guest in running}
        for before, after in changed:
            guest = by_uuid[after.uuid]
            self._log_place(before, after, guest)
            if before.bound and not after.bound:
                self._unbind(guest, before)
            if (before.vcpus, before.memory_bytes) == (after.vcpus, after.memory_bytes):
                continue
            self._log.info(
                'guest %s: now has %d vCPUs and %d MiB (previously promised: %d and %d MiB)',
                after.name,
                after.vcpus,
                after.memory_bytes >> 20,
                before.vcpus,
                before.memory_bytes >> 20,
            )
        return draft.with_promises({})

    def _unbind(self, guest: model.Guest, before: model.Promise) -> None:
        """Unbind a guest's memory from nodes that are no longer watched for it."""
        try:
            groups = cgroups.of_guest(guest, self._root)
            holding.unbind_memory(groups, frozenset(before.mem_nodes))
        except GuestGone:
            pass
        except CpusetError as error:
            self._log.warning('guest %s: stays bound: %s', guest.name, error)

    def _log_place(self, before: model.Promise, after: model.Promise, guest: model.Guest) -> None:
        """Log why a guest is promised other nodes than before, if it is."""
        for what, nodes, former_nodes in (
            ('', after.cpu_nodes, before.cpu_nodes),
            ('the memory of ', after.mem_nodes, before.mem_nodes),
        ):
            if nodes != former_nodes:
                self._log.warning(
                    'guest %s: promised %s%s instead of %s: %s',
                    after.name,
                    what,
                    name_nodes(nodes),
                    name_nodes(former_nodes),
                    '; '.join(allowed.limits(guest, self._root))
                    or (
                        'numatune has bound its memory'
                        if 'numatune' in guest.placed_by
                        else 'there are too few CPUs for its vCPUs'
                    ),
                )
                return

    def _log_placed(self, running: Iterable[model.Guest]) -> None:
        """Log each change in how others have placed a guest."""
        before, self._placed = self._placed, {}
        for guest in running:
            self._placed[guest.run_id] = guest.placed_by
            if before.get(guest.run_id, guest.placed_by) != guest.placed_by:
                self._log.info(
                    'guest %s: %s',
                    guest.name,
                    'now placed by others: ' + ', '.join(guest.placed_by)
                    if guest.placed_by
                    else 'no longer placed by others',
                )

    def _read_unlocked(self) -> HostPromises | None:
        """Return the promises, parsing the file (which is slow) only if it has changed."""
        identity: Identity | None
        directory = self.host_options.state_path(self._root)
        try:
            identity = files.identity(os.path.join(directory, promises_file.FILE))
        except OSError:
            identity = None
        if identity is not None and self._cached and self._cached[0] == identity:
            return self._cached[1]
        try:
            host_promises = promises_file.read(self.host_options, self._root)
        except StateError:
            return None  # reported under the lock, where a damaged file is set aside
        self._cached = identity, host_promises  # a file that replaces it has another identity
        return host_promises

    def _log_changes(
        self, before: Mapping[str, model.Promise], after: Mapping[str, model.Promise]
    ) -> None:
        for uuid, promise in before.items():
            if uuid not in after:
                self._log.info(
                    'guest %s: its promise of %d MiB was dropped: the guest no longer exists',
                    promise.name,
                    promise.memory_bytes >> 20,
                )
        for uuid, promise in after.items():
            if uuid not in before:
                self._log.info(
                    'guest %s: runs without a promise: counted as %s on %s, %d MiB',
                    promise.name,
                    promise.origin_text,
                    name_nodes(promise.cpu_nodes),
                    promise.memory_bytes >> 20,
                )
