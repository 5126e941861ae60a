# SPDX-License-Identifier: Apache-2.0
"""Choose the guests whose cpusets are read back in a tick, as they may have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.agent.tick import Tick

    #: A guest, its promise, the nodes that it is widened to, and the CPUs of the host's nodes.
    _State = tuple[
        model.Guest,
        model.Promise | None,
        tuple[int, ...] | None,
        tuple[tuple[int, frozenset[int], frozenset[int]], ...],
    ]

#: All guests are due this often [s] even without events: a change of a thread's own affinity, for
#: example, causes no event.
FULL_CHECK_S = 60.0


class ReadSchedule:
    """Chooses the guests whose cpusets are due to be read back."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._all_last_due_s: float | None = None
        self._changed: set[str] = set()
        self._to_retry: set[str] = set()

    def mark_changed(self, names: Iterable[str]) -> None:
        """Mark the guests with these names as due."""
        self._changed.update(names)

    def due(
        self, tick: Tick, widened_nodes: Mapping[str, tuple[int, ...]], watched: set[str]
    ) -> set[str]:
        """Return the uuids of the guests that are due.

        A guest is due if an event has named it, if its groups cannot be watched, if its memory is
        bound (other guests may fill its nodes), while it starts, after a failure, and if its
        promise, its nodes or the host's CPUs have changed. Every :data:`FULL_CHECK_S`, all guests
        are due.

        :param tick: a tick with the host and its promises
        :param widened_nodes: {uuid: node ids} of widened guests
        :param watched: uuids of the guests whose groups are watched
        """
        assert tick.host is not None and tick.host_promises is not None
        host = tuple((node.id, node.online_cpus, node.cpus) for node in tick.host.nodes)
        monotonic_s = tick.now.monotonic_ns / 1e9
        all_due = (
            self._all_last_due_s is None
            or not 0 <= monotonic_s - self._all_last_due_s < FULL_CHECK_S
        )
        if all_due:
            self._all_last_due_s = monotonic_s
        former_states, self._states = self._states, {}
        due: set[str] = set()
        for guest in tick.guests:
            promise = tick.host_promises.promises.get(guest.uuid)
            nodes = widened_nodes.get(guest.uuid)
            state = self._states[guest.uuid] = (guest, promise, nodes, host)
            if (
                all_due
                or guest.name in self._changed
                or guest.uuid in self._to_retry
                or guest.uuid not in watched
                or former_states.get(guest.uuid) != state
                or (promise is not None and (promise.bound or not promise.started))
            ):
                due.add(guest.uuid)
        self._changed = set()
        self._to_retry = set()
        return due

    def retry(self, uuids: Iterable[str]) -> None:
        """Mark guests as due in the next tick, because a write to them has failed."""
        self._to_retry.update(uuids)
