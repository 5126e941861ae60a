# SPDX-License-Identifier: Apache-2.0
"""Keep track of widened guests until they are narrowed or go home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core.rebalance import plan_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.moves.parts import MovePart

    #: Ids of the nodes that a guest is held to, and its promise when it was widened.
    _Place = tuple[tuple[int, ...], model.Promise]


class WidenedGuests:
    """The widened guests, and those that the move in progress has narrowed."""

    def __init__(self) -> None:
        self._widened: dict[str, _Place] = {}
        self._narrowed: dict[str, _Place] = {}

    @property
    def nodes(self) -> dict[str, tuple[int, ...]]:
        """Return {uuid: ids of the nodes that a widened guest is held to}."""
        return {uuid: nodes for uuid, (nodes, _) in self._widened.items()}

    def clear(self) -> None:
        """Forget all widened guests, so that they go home."""
        self._widened.clear()

    def forget_changed(
        self, running: Iterable[model.Guest], promised: Mapping[str, model.Promise]
    ) -> None:
        """Forget guests that are overridden or whose promise has changed, so that they go home."""
        overridden = {guest.uuid for guest in running if guest.override}
        self._widened = {
            uuid: (nodes, promise)
            for uuid, (nodes, promise) in self._widened.items()
            if uuid not in overridden and promised.get(uuid) == promise
        }

    def begin(self) -> None:
        """Forget which guests the previous move has narrowed."""
        self._narrowed = {}

    def record(self, kind: str, part: MovePart) -> None:
        """Record that a move has widened or narrowed a guest, once its CPUs have been written.

        :param kind: one of :data:`plan_records.KINDS`
        """
        uuid = part.plan_part.uuid
        if kind == plan_records.WIDEN:
            self._widened[uuid] = tuple(part.plan_part.to_nodes), part.after
        elif kind != plan_records.FETCH and uuid in self._widened:
            self._narrowed[uuid] = self._widened.pop(uuid)

    def undo(self, uuid: str) -> None:
        """Record that a guest is widened again, because the move that narrowed it was undone."""
        if uuid in self._narrowed:
            self._widened[uuid] = self._narrowed[uuid]
