# SPDX-License-Identifier: Apache-2.0
"""Finish a guest's start once its QEMU runs: hold it to its place, and record that.

The hook does so at ``started``, and the agent if the hook could not.

The guest is held to the CPUs that were decided on at its start, and its memory follows them: the
agent fetches memory that is elsewhere, within its budgets. If the memory cannot be moved, or
there is too much of it to move, the CPUs follow the memory.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.conf.host_options import FOLLOW_MEMORY_OVER_BYTES
from nova_numa_pmc.core import eligibility, pools, promising
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import (
    CpusetError,
    GuestGone,
    NumaPmcError,
    PinnedByOthers,
    StateError,
)
from nova_numa_pmc.host import allowed, cgroups, cpusets, guests, holding
from nova_numa_pmc.placing import decide
from nova_numa_pmc.record import TYPE_CHECKING, Record
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.placing.decide import Decision


class FinishedStart(Record):
    """A start that is finished.

    :param decision: what was decided for the guest, with its promise as it is recorded
    :param is_held: whether it is held to its place; if not, its CPUs are left alone
    :param bytes_by_node: {node id: bytes} of its memory; empty if that is unknown
    """

    decision: Decision
    is_held: bool = False
    bytes_by_node: Mapping[int, int] = {}


def finish(
    guest: model.Guest,
    promise: model.Promise | None,
    host_options: HostOptions,
    root: str,
    lock_timeout_s: float,
) -> FinishedStart:
    """Carry out the decision made at a guest's start; if there was none, decide now.

    :param guest: with the operator's override
    :param promise: the promise recorded at its start; None: there is none
    :param lock_timeout_s: how long to wait for the promises file's lock [s]
    :raises NumaPmcError: the guest is left as it is, and its promise says so, unless it is the
        promise that could not be read or written
    """
    return _Start(guest, promise, host_options, root, lock_timeout_s).finish()


class _Start:
    """The start of one guest.

    :ivar early_cpus: the CPUs to which it was narrowed before its first instruction
    """

    def __init__(
        self,
        guest: model.Guest,
        promise: model.Promise | None,
        host_options: HostOptions,
        root: str,
        lock_timeout_s: float,
    ) -> None:
        self.guest, self.host_options, self.root = guest, host_options, root
        self.lock_timeout_s = lock_timeout_s
        self.groups: cgroups.GuestGroups | None = None
        self.early_cpus = frozenset[int]()
        self.is_recorded = promise is not None and not promise.missed
        if promise is not None and self.is_recorded:
            why = '%s: as promised' % name_nodes(promise.cpu_nodes)
            self.decision = decide.Decision(promise, None, why, ())
        else:
            self.decision = self._decide()

    def finish(self) -> FinishedStart:
        """Hold the guest to its place, or leave it alone, and record that."""
        if self.decision.promise.origin != model.PLACED:
            self._record()
            return FinishedStart(self.decision)
        try:
            bytes_by_node = self._decide_with_process()
            if self.groups is None or self.decision.cpus is None:
                # Since the start, an override was set, or its CPUs were taken.
                _undo_early(self.groups, self.early_cpus, self.guest)
                self._record()
                return FinishedStart(self.decision)
            holding.hold(self.groups, self.decision.cpus, written_cpus=self.early_cpus)
        except NumaPmcError as error:
            _undo_early(self.groups, self.early_cpus, self.guest)
            if not isinstance(error, StateError):  # after which nothing can be recorded
                self._record_floating(error)
            raise
        # The kernel would try in vain to move each page of locked memory, and huge pages stay.
        promise = self.decision.promise._replace(
            bound=self.host_options.bind
            and bool(self.decision.promise.mem_nodes)
            and not (self.guest.locked or self.guest.page_bytes)
        )
        self.decision = self.decision._replace(promise=promise)
        try:
            self._record()
        except StateError as error:
            problem = '%s; the guest is placed, but not recorded as started' % error
            problems = (*self.decision.problems, problem)
            self.decision = self.decision._replace(problems=problems)
        return FinishedStart(self.decision, True, bytes_by_node)

    def _decide(self, bytes_by_node: Mapping[int, int] | None = None) -> Decision:
        return decide.decide_promise(
            self.guest, self.host_options, self.root, self.lock_timeout_s, bytes_by_node
        )

    def _decide_with_process(self) -> dict[int, int]:
        """Decide on the guest's CPUs, now that its process, groups and memory exist.

        A recorded decision stays, unless the guest may not use enough of its CPUs, its memory is
        elsewhere and has to stay there, or the operator has set an override since.

        :returns: {node id: bytes} of its memory; empty if that is unknown
        """
        guest = guests.with_process(self.guest, self.root)
        groups = self.groups = cgroups.of_guest(guest, self.root)
        # The group of its own, or a slice that it was the first to need, may limit it further.
        (self.guest,) = (guest,) = allowed.with_grants([guest], self.root)
        self.early_cpus = _early_cpus(groups, guest)
        decides_now = self.is_recorded
        if self.is_recorded and not eligibility.is_left_alone(guest):
            host = decide.host_with_pool_cpus(self.root)
            promise = promising.as_granted(self.decision.promise, guest, host)
            cpus = pools.cpus_of_promise(promise, host, guest)
            stays = set(promise.cpu_nodes) <= set(self.decision.promise.cpu_nodes)
            if stays and pools.is_large_enough(cpus, host, guest):
                self.decision = self.decision._replace(promise=promise, cpus=cpus)
                self.early_cpus = self.early_cpus or cpus
                decides_now = False
        if decides_now:
            self.decision = self._decide()
        bytes_by_node, has_to_stay = _read_memory(guest, self.decision.promise, self.root)
        if has_to_stay:
            self.decision = self._decide(bytes_by_node)
        return bytes_by_node

    def _record(self) -> None:
        """Record that the guest has started, with the promise that was decided on."""
        promise = self.decision.promise._replace(started=True, missed=False)
        promises_file.replace_running(promise, self.host_options, self.root, self.lock_timeout_s)
        self.decision = self.decision._replace(promise=promise)

    def _record_floating(self, error: NumaPmcError) -> None:
        """Record that the guest could not be held; the agent tries again, if it is ours to place.

        The nodes of a bound guest stay watched.
        """
        if not self.decision.promise.bound:
            missed = not isinstance(error, (PinnedByOthers, GuestGone))
            promise = promising.as_floating(self.decision.promise)._replace(missed=missed)
            promises_file.replace_running(
                promise, self.host_options, self.root, self.lock_timeout_s
            )


def _early_cpus(groups: cgroups.GuestGroups, guest: model.Guest) -> frozenset[int]:
    """Return the CPUs to which ``start`` has narrowed a guest without pins; empty if it has not.

    Only ``start`` sets the CPUs of ``libvirt/`` (v2). Elsewhere, libvirt has given the group of
    the emulator all CPUs that the guest may use.
    """
    cpus_by_group = cpusets.read_sets(groups, 'cpus')
    if groups.version == 2 and groups.parent != groups.scope:
        return cpus_by_group[groups.parent]
    cpus = cpus_by_group.get(groups.main, frozenset())
    return frozenset() if cpus == (guest.allowed_cpus or cpus_by_group[groups.parent]) else cpus


def _undo_early(
    groups: cgroups.GuestGroups | None, cpus: frozenset[int], guest: model.Guest
) -> None:
    """Widen the groups that were narrowed at the start; if that fails, the agent does it later.

    Another program may have pinned the guest since, so groups with any other set are left alone.
    """
    if groups and cpus:
        try:
            others = {
                os.path.basename(directory)
                for directory, own_cpus in cpusets.read_sets(groups, 'cpus').items()
                if own_cpus != cpus
            }
            holding.release_cpus(groups, cpus, guest.allowed_cpus, others | guest.pinned_groups)
        except CpusetError:
            pass


def _read_memory(
    guest: model.Guest, promise: model.Promise, root: str
) -> tuple[dict[int, int], bool]:
    """Read where a guest's memory is, and whether most of it is elsewhere and has to stay there.

    It has to stay if it cannot be moved, if the operator has pinned the guest, or if it exceeds
    :data:`FOLLOW_MEMORY_OVER_BYTES`.

    :returns: ({node id: bytes}, whether it has to stay)
    """
    bytes_by_node = cgroups.memory_by_node(guest.pid, root, guest.page_bytes) or {}
    homes = promise.mem_nodes or promise.cpu_nodes
    elsewhere_bytes = cgroups.bytes_elsewhere(bytes_by_node, homes)
    has_to_stay = (
        guest.locked
        or guest.page_bytes
        or guest.preallocated
        or guest.override == model.PIN  # nothing fetches it
        or elsewhere_bytes > FOLLOW_MEMORY_OVER_BYTES
    )
    return bytes_by_node, bool(has_to_stay) and 2 * elsewhere_bytes > sum(bytes_by_node.values())
