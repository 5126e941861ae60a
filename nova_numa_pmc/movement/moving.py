# SPDX-License-Identifier: Apache-2.0
"""Make planned moves, a bit at a time: promise, then CPUs, then memory.

The new place is promised before anything is written, so that a start of another guest counts
it, and an agent that comes back after a kill knows what is right. A move whose memory would not
follow is taken back.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import overrides, pools, promises
from nova_numa_pmc.bookkeeping import LOCK_TIMEOUT_S
from nova_numa_pmc.core import moves, view
from nova_numa_pmc.core.explain_move import explain_move, explain_why
from nova_numa_pmc.exceptions import GuestGone, MigrationError, NumaPmcError
from nova_numa_pmc.host import cgroups, guests, migrate
from nova_numa_pmc.movement import history
from nova_numa_pmc.movement.legs import (
    Leg,
    OfCpus,
    has_followed,
    promised_after,
    told,
    why_busy,
    within_l3,
)
from nova_numa_pmc.movement.reassertion import cpus_of, left_by_us
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from nova_numa_pmc import model, pools
    from nova_numa_pmc.agent_options import Options
    from nova_numa_pmc.state_format import Promises

#: How a move ends: as planned, undone, or not begun.
MADE, TAKEN_BACK, REFUSED = RESULTS = ('made', 'taken_back', 'refused')
#: What can't be taken back stands.
_COUNTED_AS = {history.PARTLY: MADE, history.TAKEN_BACK: TAKEN_BACK, history.REFUSED: REFUSED}


class Refused(MigrationError):
    """A planned move is not made: what it was planned on holds no longer."""


class Order(Record):
    """A move to come, and what it was planned of.

    :param promised: by uuid, before it
    :param targets: by uuid, after it where the move alone doesn't tell: it takes another one
        back
    """

    move: moves.Move
    promised: Mapping[str, model.Promise]
    targets: Mapping[str, model.Promise]


class Totals(Record):
    """What has been moved since the agent began.

    :param ended: {(kind of :data:`moves.KINDS`, one of :data:`RESULTS`): moves that ended so};
        replaced when it changes, as other threads read it
    :param in_hand: guests that are being moved
    """

    ended: dict[tuple[str, str], int] = {}
    moved_bytes: int = 0
    in_hand: int = 0


class Moving:
    """The moves in hand and to come.

    : as the history has them; an order of the operator's about one guest
            (:data:`history.PIN`) overrules what was said of it before
        :param record: called when a move begins and when it has ended; None: it is written down
        :param writing: passed to :class:`migrate.Mover` (tests)
        :ivar places: {uuid: node ids} of guests that are held to more nodes than were promised
        :ivar pool: the floating pool; None: as it is published
        :ivar failed: uuids of guests whose moves were not made or taken back; whoever plans
            empties it
    """

    def __init__(
        self,
        options: Options,
        root: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        who: str = history.AGENT,
        batch: str = '',
        record: Callable[[history.Entry], object] | None = None,
        **writing: Any,
    ) -> None:
        self.options, self._root, self._log, self._clock = options, root, log, clock
        self._who, self._batch = who, batch
        self._record = record or history.Writer(root, log).append
        self._writing = writing
        self.pool: pools.Pool | None = None
        self._files = guests.StatusFiles(root)
        self._queue: collections.deque[Order] = collections.deque()
        self._move: moves.Move  # the one in hand or the last one
        self._id = ''
        self._legs: tuple[Leg, ...] = ()
        self._promised: dict[str, model.Promise] = {}  # of guests when they were widened
        #: (place, promise) of those that the move in hand narrows.
        self._narrowed: dict[str, tuple[tuple[int, ...], model.Promise]] = {}
        self.places: dict[str, tuple[int, ...]] = {}
        self.failed: set[str] = set()
        self._ended: dict[tuple[str, str], int] = {}
        self._moved_bytes = 0

    @property
    def busy(self) -> bool:
        """Say whether there is anything in hand or to come."""
        return bool(self._queue or self._legs)

    @property
    def totals(self) -> Totals:
        """Return what has been moved until now."""
        return Totals(self._ended, self._moved_bytes, len(self._legs))

    @property
    def waiting(self) -> int:
        """Return how many moves are to come."""
        return len(self._queue)

    @property
    def in_hand(self) -> tuple[tuple[str, migrate.Progress], ...]:
        """Return ((a guest's name, how far it is), …) of the move in hand."""
        return tuple((leg.step.name, leg.mover.progress) for leg in self._legs)

    def _count(self, result: str, legs: Iterable[Leg]) -> None:
        key = self._move.kind, result
        self._ended = {**self._ended, key: self._ended.get(key, 0) + 1}
        self._moved_bytes += sum(leg.mover.progress.moved_bytes for leg in legs)

    def begin(
        self,
        plan: moves.Plan,
        promised: Mapping[str, model.Promise],
        targets: Mapping[str, model.Promise] | None = None,
    ) -> None:
        """Take over a plan's moves; ``step()`` makes them.

        :param promised, targets: as in :class:`Order`
        """
        self._queue.extend(Order(move, promised, targets or {}) for move in plan.moves)

    def mind(self, running: Iterable[model.Guest], promised: Mapping[str, model.Promise]) -> None:
        """Look at who runs now: end the move of whom libvirt works on, forget who was replaced."""
        busy = {guest.uuid for guest in running if why_busy(guest)}
        if any(leg.step.uuid in busy for leg in self._legs):
            self._cancel()
        said = {guest.uuid for guest in running if guest.override}  # these go home
        for uuid in [
            uuid
            for uuid in self.places
            if uuid in said or promised.get(uuid) != self._promised[uuid]
        ]:
            del self.places[uuid], self._promised[uuid]

    def step(self) -> float | None:
        """Do the next bit.

        :returns: after how many seconds to do the next one; None: all is done
        """
        if not self._legs:
            if not self._queue:
                return None
            self._start(self._queue.popleft())
            return 0.0
        try:
            waits = [
                leg.mover.step().wait_s
                for leg in self._legs
                if leg.mover.progress.state == migrate.MOVING
            ]
        except Exception as error:  # of whichever leg: the move is one
            self._give_up(error)
            return 0.0
        if all(leg.mover.progress.state != migrate.MOVING for leg in self._legs):
            self._end()
            return 0.0
        return min(waits)

    def drop_waiting(self) -> None:
        """Give up what is to come."""
        self._queue.clear()

    def abandon(self) -> None:
        """Give up what is to come, and end what is in hand: kept where most has moved."""
        self.drop_waiting()
        self._cancel()
        while self._legs:
            self.step()

    def _cancel(self) -> None:
        for leg in self._legs:
            leg.mover.cancel()

    def _start(self, order: Order) -> None:
        """Promise the new places and write the CPUs."""
        self._move, self._id, self._narrowed = order.move, history.new_id(), {}
        try:
            self._legs = self._reserved(*order)
            for leg in self._legs:
                leg.mover.step()
        except Exception as error:
            self._give_up(error)
            return
        for leg in self._legs:
            self._remember_place(leg)

    def _reserved(
        self,
        move: moves.Move,
        promised: Mapping[str, model.Promise],
        targets: Mapping[str, model.Promise],
    ) -> tuple[Leg, ...]:
        """Record the promises of a move's guests, all or none; return its legs."""
        found: Iterable[model.Guest] = self._files.read()[0]
        if self._who != history.PIN:
            found, _ = overrides.marked(found, self._root)
        running = {guest.uuid: guest for guest in found}
        host = promises.usable_host(self._root, self.pool)
        legs: list[Leg] = []
        for step in move.steps:
            guest = running.get(step.uuid)
            if guest is None:
                raise GuestGone('guest %s: ended before it was moved' % step.name)
            if why_busy(guest):
                raise Refused(
                    'guest %s: %s'
                    % (step.name, why_busy(guest) if guest.override else guest.job or guest.state)
                )
            before = promised.get(step.uuid)
            if before is None:
                raise Refused('guest %s: nothing was promised to it' % step.name)
            after = targets.get(step.uuid) or promised_after(move, step, before)
            if after.cpu_nodes != before.cpu_nodes:
                others = {**promised, **{leg.step.uuid: leg.after for leg in legs}}
                del others[step.uuid]
                after = within_l3(
                    after, guest, host, list(others.values()), self.options.shared.limits
                )
            legs.append(
                Leg(
                    step, before, after, self._mover(move, step, guest, host, after), self._clock()
                )
            )
        # Before the promises are: a kill leaves no move that the history does not know. And not
        # under their lock: a start of a guest must not wait for a disk.
        self._keep(legs, history.BEGUN, 'in hand, or whoever made it was killed')
        with promises.locked(self.options.shared, self._root, LOCK_TIMEOUT_S) as ledger:
            for leg in legs:
                if ledger.promises.get(leg.step.uuid) != leg.before:
                    raise Refused('guest %s: its promise has changed since' % leg.step.name)
                ledger.put(leg.after)
            self._check_room(legs, ledger, host)
        return tuple(legs)

    def _mover(
        self,
        move: moves.Move,
        step: moves.Step,
        guest: model.Guest,
        host: model.Topology,
        after: model.Promise,
    ) -> migrate.Mover | OfCpus:
        groups = cgroups.find(guest.pid, self._root)
        cpus = None
        if move.kind != moves.FETCH and step.to_nodes:
            cpus = (
                pools.cpus_held(after, host, guest)
                if tuple(step.to_nodes) == after.cpu_nodes
                else cpus_of(step.to_nodes, host, guest)
            )
            if not cpus:
                raise Refused('guest %s: none of its CPUs is on these nodes now' % step.name)
        if not step.mem_nodes:
            return OfCpus(groups, cpus, self._writing)
        count = sum(1 for each in move.steps if each.mem_nodes)
        terms = self.options.terms
        return migrate.Mover(
            groups,
            step.mem_nodes,
            cpus,
            ours=left_by_us(groups),
            root=self._root,
            terms=migrate.Terms(
                bytes_per_sec=max(1, terms.bytes_per_sec // count),
                reserve_bytes=terms.reserve_bytes,
            ),
            clock=self._clock,
            **self._writing,
        )

    def _check_room(self, legs: Sequence[Leg], ledger: Promises, host: model.Topology) -> None:
        """Refuse where a start has taken the room since; raised under the lock: not recorded."""
        seen = view.view(host, ledger.promises.values(), self.options.shared.limits)
        wanted = {node for leg in legs for node in leg.step.mem_nodes}
        for node in seen.nodes:
            if node.id in wanted and node.promised_bytes > node.capacity_bytes:
                raise Refused(
                    'node %d has no room left for %s'
                    % (node.id, ', '.join(leg.step.name for leg in legs))
                )

    def _remember_place(self, leg: Leg) -> None:
        uuid = leg.step.uuid
        if self._move.kind == moves.WIDEN:
            self.places[uuid], self._promised[uuid] = tuple(leg.step.to_nodes), leg.after
        elif self._move.kind != moves.FETCH and uuid in self.places:
            self._narrowed[uuid] = self.places.pop(uuid), self._promised.pop(uuid)

    def _end(self) -> None:
        """Keep a move whose memory has followed, else take it back."""
        left = [leg for leg in self._legs if not has_followed(leg.mover.progress)]
        if left:
            words = ', '.join('%s: %s' % (leg.step.name, told(leg.mover.progress)) for leg in left)
            self._give_up(MigrationError('most memory stays where it was (%s)' % words))
            return
        for leg in self._legs:
            progress = leg.mover.progress
            self._log.info(
                'guest %s: %s: node %s to %s, %d MiB in %.0f ms%s; %s',
                leg.step.name,
                self._move.kind,
                _listed(leg.step.from_nodes),
                _listed(leg.step.to_nodes),
                progress.moved_bytes >> 20,
                1e3 * (self._clock() - leg.began_s),
                '' if progress.state == migrate.DONE else ' (%s)' % told(progress),
                explain_move(self._move),
            )
        self._count(MADE, self._legs)
        legs, self._legs = self._legs, ()
        states = [
            told(leg.mover.progress) for leg in legs if leg.mover.progress.state != migrate.DONE
        ]
        self._keep(
            legs,
            history.PARTLY if states else history.DONE,
            '; '.join(states) or explain_why(self._move),
        )

    def _give_up(self, error: Exception) -> None:
        """Take promises and CPUs back; what has moved of the memory stays.

        A promise that can't be had back keeps its CPUs: the guest is where it is promised, and
        its memory is for the next plan.
        """
        legs, self._legs = self._legs, ()
        self.failed.update(step.uuid for step in self._move.steps)
        unknown = not isinstance(error, (NumaPmcError, OSError))
        result = history.TAKEN_BACK if legs else history.REFUSED
        for leg in legs:
            try:
                self._restore(leg)
                leg.mover.undo_cpus()
                if leg.step.uuid in self._narrowed:
                    self.places[leg.step.uuid], self._promised[leg.step.uuid] = self._narrowed[
                        leg.step.uuid
                    ]
            except GuestGone:
                pass
            except NumaPmcError as another:
                self._log.warning('guest %s: %s', leg.step.name, another)
                result = history.PARTLY
        self._count(_COUNTED_AS[result], legs)
        if isinstance(error, GuestGone):
            self._log.info('not moved: %s', error)
        else:
            self._log.warning(
                'not moved: %s: %s', _names(self._move), error, exc_info=error if unknown else None
            )
        self._keep(legs, result, str(error))

    def _keep(self, legs: Sequence[Leg], result: str, why: str) -> None:
        """Write down that a move begins, or what came of it."""
        self._record(
            history.entry(
                self._id,
                self._move,
                [
                    history.Part(
                        leg.step.uuid,
                        leg.step.name,
                        leg.before.since_ns,
                        history.place(leg.before),
                        history.place(leg.after),
                        leg.mover.progress.moved_bytes,
                    )
                    for leg in legs
                ],
                self._who,
                self._batch,
                max((self._clock() - leg.began_s for leg in legs), default=0),
                result,
                why,
            )
        )

    def _restore(self, leg: Leg) -> None:
        with promises.locked(self.options.shared, self._root, LOCK_TIMEOUT_S) as ledger:
            if ledger.promises.get(leg.step.uuid) == leg.after:
                ledger.put(leg.before)


def _names(move: moves.Move) -> str:
    return ', '.join(step.name for step in move.steps)


def _listed(nodes: Iterable[int]) -> str:
    return ','.join(map(str, nodes)) or 'any'
