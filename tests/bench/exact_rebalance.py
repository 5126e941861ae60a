# SPDX-License-Identifier: Apache-2.0
"""Search for the division of guests among nodes with the least loss and the fewest bytes.

Branch and bound over every guest's place: each node, with its memory there, or unchanged. The
burden (loss and crowding) is the planner's own definition; its loss is tested against
``core/pressure.py`` elsewhere.
"""

from nova_numa_pmc.core.rebalance.host_model import HostModel, Place

#: Losses are equal if they differ by at most this fraction, or by this number of cores.
EQUAL_RATIO, EQUAL_CORES = 0.01, 0.02


class Search:
    """A search; ``proven`` says whether it was finished within its budget."""

    def __init__(self, situation, rebalance_options, budget=60000):
        self.host_model = HostModel(situation, rebalance_options)
        self.budget = budget
        self.steps = 0
        self.host_loss = self.host_model.host_loss
        self.guests = sorted(
            (guest for guest in self.host_model.guests.values() if guest.movable),
            key=lambda model: -(model.demand_cores + 4 * model.bandwidth_bytes_per_sec * 1e-10),
        )
        self.left = [
            sum(model.demand_cores for model in self.guests[at:])
            for at in range(len(self.guests) + 1)
        ]
        # A node that has promised more than it has may keep that, whichever guest has it.
        self.most = [
            max(node.capacity_bytes, promised)
            for node, promised in zip(self.host_model.nodes, self.host_model.promised_bytes)
        ]
        for guest in self.guests:
            self.host_loss.add_effect(guest.effect, -1)
            for at, size in guest.promised_bytes.items():
                self.host_model.promised_bytes[at] -= size
        self.options = [self._options(guest) for guest in self.guests]

    @property
    def proven(self):
        """Return whether the search was finished."""
        return self.steps < self.budget

    def _options(self, guest):
        """List (effect, bytes, {position: promise}); the unchanged place comes first."""
        options = [(guest.effect, 0, guest.promised_bytes)]
        for n in self.host_model.positions_with_cpus:
            place = Place((n,), self.host_model.memory_at[n])
            size = self.host_model.bytes_to_move(guest, place)
            if self.host_model.allows(guest, place) and (
                size or place.cpu_positions != guest.cpu_positions
            ):
                options.append(
                    (
                        self.host_model.effect(guest, place),
                        size,
                        {place.mem_position: guest.load.memory_bytes},
                    )
                )
        return options

    def least_loss(self, known):
        """Return the least loss [cores], at most ``known``."""
        self.best = known
        self._descend(0)
        return self.best

    def _descend(self, at):
        self.steps += 1
        if not self.proven or self._bound(at) >= self.best - 1e-9:
            return
        if at == len(self.guests):
            self.best = sum(self.host_loss.by_cause())
            return
        for option in self._cheapest_first(at):
            if self._take(option):
                self._descend(at + 1)
            self._give_back(option)

    def fewest_bytes(self, loss, known):
        """Return the fewest bytes that lead to this or an equal loss, at most ``known``."""
        self.limit = loss + max(EQUAL_CORES, EQUAL_RATIO * loss)
        self.fewest, self.steps = known, 0
        self._spend(0, 0)
        return self.fewest

    def _spend(self, at, spent):
        self.steps += 1
        if not self.proven or spent >= self.fewest or self._bound(at) > self.limit:
            return
        if at == len(self.guests):
            self.fewest = spent
            return
        for option in sorted(self.options[at], key=lambda option: option[1]):
            if self._take(option):
                self._spend(at + 1, spent + option[1])
            self._give_back(option)

    def _cheapest_first(self, at):
        return sorted(self.options[at], key=lambda option: -self.host_loss.gain(None, option[0]))

    def _take(self, option):
        effect, _, promise = option
        self.host_loss.add_effect(effect)
        promised, fits = self.host_model.promised_bytes, True
        for n, amount in promise.items():
            promised[n] += amount
            fits = fits and promised[n] <= self.most[n]
        return fits

    def _give_back(self, option):
        effect, _, promise = option
        self.host_loss.add_effect(effect, -1)
        for n, amount in promise.items():
            self.host_model.promised_bytes[n] -= amount

    def _bound(self, at):
        """Return a bound: what is placed keeps its loss, and the rest fills what is idle."""
        waiting, distance, queueing, crowding = self.host_loss.by_cause()
        idle = sum(
            max(0.0, cores - demand)
            for cores, demand in zip(self.host_loss.cores, self.host_loss.demand_cores)
        )
        return waiting + distance + queueing + crowding + max(0.0, self.left[at] - idle)
