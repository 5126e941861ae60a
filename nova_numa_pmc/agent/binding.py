# SPDX-License-Identifier: Apache-2.0
"""Keep the memory of guests bound to their nodes, while that cannot get them killed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from nova_numa_pmc.core import host_view
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import GuestGone, NumaPmcError
from nova_numa_pmc.host import cgroups, guests, holding
from nova_numa_pmc.host.cpusets import thread_sets
from nova_numa_pmc.host.page_moves import node_room
from nova_numa_pmc.state import promises_file

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc import model
    from nova_numa_pmc.conf.host_options import HostOptions
    from nova_numa_pmc.state.promises_file import HostPromises


class Binder:
    """Binds and unbinds the memory of guests in one tick.

    :param host_promises: the promises to all guests
    """

    def __init__(
        self,
        host_options: HostOptions,
        root: str,
        log: logging.Logger,
        host: model.Topology,
        host_promises: HostPromises,
    ) -> None:
        self._host_options, self._root, self._log = host_options, root, log
        self._host, self._host_promises = host, host_promises
        self._room = node_room.BoundRoom(host_options.placement_options.reserve_bytes, root)

    def check(
        self,
        guest: model.Guest,
        promise: model.Promise,
        groups: cgroups.GuestGroups,
        only_unbind: bool,
    ) -> None:
        """Keep a bound guest bound while its promised memory fits its nodes, else unbind it."""
        if not promise.mem_nodes or 'numatune' in guest.placed_by:
            return
        mems = frozenset(promise.mem_nodes)
        why = self._why_unbound(guest, promise)
        if not why:
            bound = [own == mems for own in thread_sets(groups, 'mems').values()]
            if only_unbind or all(bound):
                return
            # If only a new vCPU is not bound, no memory is elsewhere.
            why, changes = holding.bind_memory(
                groups, mems, 1 << 62 if any(bound) else holding.FETCH_MAX_BYTES
            )
            if changes:
                self._log.info('guest %s: bound to the memory of %s', guest.name, name_nodes(mems))
            if not why:
                return
        changes = holding.unbind_memory(groups, mems)
        promises_file.update_running(promise, self._host_options, self._root, bound=False)
        self._log.info(
            'guest %s: %s bound to the memory of %s: %s',
            guest.name,
            'no longer' if changes else 'not',
            name_nodes(mems),
            why,
        )

    def _why_unbound(self, guest: model.Guest, promise: model.Promise) -> str:
        """Return why a guest may not be bound any more; empty if it may."""
        if not self._host_options.bind:
            return 'the option bind is off'
        if guest.page_bytes:
            return 'its huge pages stay where they are'
        if not self._overfull_nodes.isdisjoint(promise.mem_nodes):
            return 'more memory is promised there than fits'
        return self._room.take(promise, cgroups.memory_by_node(guest.pid, self._root) or {})

    @functools.cached_property
    def _overfull_nodes(self) -> frozenset[int]:
        """The ids of the nodes whose memory does not cover its promises."""
        view = host_view.view(
            self._host, self._host_promises.promises.values(), self._host_options.placement_options
        )
        return frozenset(
            node.id for node in view.nodes if node.promised_bytes > node.capacity_bytes
        )


def unbind(guest: model.Guest, promise: model.Promise, root: str, log: logging.Logger) -> bool:
    """Unbind a guest's memory from the nodes of a promise; return whether it was bound to them."""
    try:
        groups = cgroups.of_guest(guest, root)
        return bool(holding.unbind_memory(groups, frozenset(promise.mem_nodes)))
    except GuestGone:
        return False
    except NumaPmcError as error:
        log.warning('guest %s: stays bound: %s', guest.name, error)
        return False


def unbind_all(host_options: HostOptions, root: str, log: logging.Logger, why: str) -> None:
    """Unbind the memory of all bound guests, because their nodes are no longer watched.

    Their promises stay bound, so that the agent binds them again when it watches their nodes.

    :param why: why their nodes are not watched, for the log
    """
    host_promises = promises_file.read(host_options, root)
    bound = {promise.uuid: promise for promise in host_promises.promises.values() if promise.bound}
    for guest in guests.read_running(root)[0] if bound else ():
        if guest.uuid in bound and unbind(guest, bound[guest.uuid], root, log):
            log.info('guest %s: no longer bound: %s', guest.name, why)
