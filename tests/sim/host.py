# SPDX-License-Identifier: Apache-2.0
"""Simulate a host in a closed loop: guests' places affect what they get, and so their demand.

Second by second, guests want cores and nodes share theirs out (an overloaded node serves all in
proportion; guests that may use several nodes level them). Each served core stalls for its remote
and queueing accesses, traffic follows from what is left, and latency from the traffic of the
second before. Written independently of the planner, so that it does not repeat the planner's
simplifications: the planner sees what a host would measure, noise included.
"""

PAGE_BYTES, LINE_BYTES = 4096, 64
#: Threads per core do not matter here: a core is a core.
QUEUEING, KNEE = 0.15, 0.95


class SimGuest:
    """A guest: its size, its current demand, and its place.

    :ivar wanted: cores, before bursts; lines: DRAM accesses per useful core-second
    :ivar mlp: misses at a time, or None for the host's; counted: share of accesses that counters
        see, or None for all
    :ivar cpus: tuple of nodes; bytes: list by node
    """

    def __init__(self, name, vcpus, promise_bytes, resident_bytes, nodes):
        self.name, self.vcpus, self.promise_bytes = name, vcpus, promise_bytes
        self.wanted, self.lines = 0.0, 0.0
        self.cpus: tuple[int, ...] = (0,)
        self.home: tuple[int, ...] = (0,)
        self.bytes = [0.0] * nodes
        self.bytes[0] = float(resident_bytes)
        self.target = self.mlp = self.counted = None
        self.reset()

    def reset(self):
        """Discard what was measured."""
        self.asked = self.served = self.useful = self.local = self.remote = 0.0
        self.ran = [0.0] * len(self.bytes)

    def put(self, cpus, memory_at=None):
        """Place the guest, with its memory there at once, as at the start of a run."""
        self.cpus = self.home = tuple(cpus)
        total, where = sum(self.bytes), memory_at if memory_at is not None else cpus
        self.bytes = [total / len(where) if n in where else 0.0 for n in range(len(self.bytes))]


class SimHost:
    """The nodes, the guests, and what was lost.

    :ivar lost: core-seconds that guests wanted and could not use
    :ivar cost: core-seconds that moves took
    """

    def __init__(
        self,
        cores,
        capacity_bytes,
        bandwidth_max,
        latencies_ns,
        mlp=1.0,
        bytes_per_sec=256 << 20,
        cpu_s_per_page=2e-6,
        change_core_sec=0.5,
    ):
        self.cores, self.capacity_bytes = list(cores), list(capacity_bytes)
        self.bandwidth_max, self.latencies_ns = list(bandwidth_max), latencies_ns
        self.mlp, self.bytes_per_sec = mlp, bytes_per_sec
        self.cpu_s_per_page, self.change_core_sec = cpu_s_per_page, change_core_sec
        self.guests, self.queue = [], []
        self.busy = [0.0] * len(cores)  # u of the last second
        self.lost = self.cost = self.wanted = self.useful = 0.0
        self.moves = self.changes = self.moved_bytes = 0
        self.reset()

    def reset(self):
        """Start a new interval."""
        self.elapsed = 0.0
        self.node_asked, self.node_served, self.node_bytes = (
            [0.0] * len(self.cores) for _ in range(3)
        )
        for guest in self.guests:
            guest.reset()

    def change(self, guest, cpus, memory=None):
        """Move a guest's CPUs now and queue its memory; the move is counted and charged."""
        if tuple(cpus) != guest.cpus:
            guest.cpus = tuple(cpus)
            self.cost += self.change_core_sec
        if memory is None:
            self.changes += 1
            return
        guest.home = (memory,)
        guest.target = memory
        self.queue = [queued for queued in self.queue if queued is not guest] + [guest]
        self.moves += 1

    def step(self, seconds, bursts):
        """Run for a while.

        :param bursts: {guest name: factor on what it wants}
        """
        asked = [
            min(guest.vcpus, guest.wanted * bursts.get(guest.name, 1.0)) for guest in self.guests
        ]
        demand, shares = self._spread(asked)
        scale = [min(1.0, c / d) if d > 0 else 1.0 for c, d in zip(self.cores, demand)]
        traffic = [0.0] * len(self.cores)
        for guest, want, parts in zip(self.guests, asked, shares):
            self._run(guest, want, parts, scale, traffic, seconds)
        for n, size in enumerate(traffic):
            self.node_bytes[n] += size * seconds
            self.node_asked[n] += demand[n] * seconds
            self.node_served[n] += demand[n] * scale[n] * seconds
            # Half of the way: guests that stall less send more in the next second.
            self.busy[n] += 0.5 * (size / self.bandwidth_max[n] - self.busy[n])
        self._migrate(seconds)
        self.elapsed += seconds

    def _run(self, guest, want, parts, scale, traffic, seconds):
        total = sum(guest.bytes) or 1.0
        served = useful = 0.0
        for n, amount in parts:
            got = amount * scale[n]
            stall = local = 0.0
            row = self.latencies_ns[n]
            for m, size in enumerate(guest.bytes):
                if size:
                    stall += size / total * (row[m] + self._queueing(m) - row[n])
                    local += size / total if m == n else 0.0
            done = got / (1 + guest.lines * stall * 1e-9 / (guest.mlp or self.mlp))
            served += got
            useful += done
            guest.ran[n] += got * seconds
            counted = done * guest.lines * (guest.counted or 1.0) * seconds
            guest.local += counted * local
            guest.remote += counted * (1 - local)
            for m, size in enumerate(guest.bytes):
                traffic[m] += done * guest.lines * LINE_BYTES * size / total
        guest.asked += want * seconds
        guest.served += served * seconds
        guest.useful += useful * seconds
        self.wanted += want * seconds
        self.useful += useful * seconds
        self.lost += (want - useful) * seconds

    def _queueing(self, m):
        u = max(0.0, self.busy[m])
        knee = min(u, KNEE)
        return (
            QUEUEING * self.latencies_ns[m][m] * (knee / (1 - knee) + (u - knee) / (1 - knee) ** 2)
        )

    def _spread(self, asked):
        """Share out the demand; spanning guests fill the emptiest of their nodes."""
        demand = [0.0] * len(self.cores)
        shares: list[tuple[tuple[int, float], ...] | None] = [None] * len(asked)
        for at, guest in enumerate(self.guests):
            if len(guest.cpus) == 1:
                demand[guest.cpus[0]] += asked[at]
                shares[at] = ((guest.cpus[0], asked[at]),)
        groups = {}
        for at, guest in enumerate(self.guests):
            if shares[at] is None:
                groups.setdefault(guest.cpus, []).append(at)
        for nodes in sorted(groups, key=lambda nodes: (len(nodes), nodes)):
            amount = sum(asked[at] for at in groups[nodes])
            poured = self._pour(demand, nodes, amount)
            for at in groups[nodes]:
                part = asked[at] / amount if amount else 0.0
                shares[at] = tuple((n, part * more) for n, more in poured)
        return demand, shares

    def _pour(self, demand, nodes, amount):
        """Raise the emptiest nodes to one level, by bisection; return (node, cores) pairs."""
        low = 0.0
        high = max(demand[n] / self.cores[n] for n in nodes) + amount / min(
            self.cores[n] for n in nodes
        )
        for _ in range(40):
            level = (low + high) / 2
            if sum(max(0.0, level * self.cores[n] - demand[n]) for n in nodes) < amount:
                low = level
            else:
                high = level
        poured = [(n, max(0.0, high * self.cores[n] - demand[n])) for n in nodes]
        for n, more in poured:
            demand[n] += more
        return poured

    def _migrate(self, seconds):
        """Move the guests in the queue one after the other, at the limited rate."""
        left = self.bytes_per_sec * seconds
        while self.queue and left > 0:
            guest = self.queue[0]
            away = [n for n, size in enumerate(guest.bytes) if size > 0 and n != guest.target]
            if not away:
                self.queue.pop(0)
                continue
            size = min(left, guest.bytes[away[0]])
            guest.bytes[away[0]] -= size
            guest.bytes[guest.target] += size
            left -= size
            self.moved_bytes += size
            # The cost of a copy, as the planner counts it: a core while it lasts.
            self.cost += size / self.bytes_per_sec + size / PAGE_BYTES * self.cpu_s_per_page
