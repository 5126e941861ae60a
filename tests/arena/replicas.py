# SPDX-License-Identifier: Apache-2.0
"""Small regions that repeat measurements made elsewhere: bench-crowded, the stack, stock Nova."""

import contextlib
import random

import numpy as np

from tests.arena import (
    cells,
    fleet as fleets,
    hosts as shapes,
    inside,
    loads,
    losses,
    parameters as p,
    policies,
    region,
)

#: As in tests/bench/bench_crowded.py: duties of its guests [%], and the seed of its orders.
DUTIES, ORDERS_SEED = (100,) * 4 + (50,) * 4 + (10,) * 4, 1
MODELS = 'pressure', 'processor sharing'
#: Draws of the second model, and positions at which a guest is either busy or not.
TICKS, POSITIONS = 200, 40
SEED = 1001


def equal_hosts(count, cores, threads, memory_mib):
    """Return equal hosts of two nodes, all with a sound agent.

    :param cores, threads, memory_mib: of each node
    """
    made = shapes.Hosts('equal', count, np.random.default_rng(SEED), without_agent=0.0)
    made.broken[:] = shapes.SOUND
    made.cores[:], made.threads[:], made.memory_mib[:] = cores, threads, memory_mib
    made.vcpus = made.cpus = made.threads.sum(1)
    made.ram_mib = made.memory_mib.sum(1)
    return made


def lab(count=1):
    """Return the lab's machines, on which the stack's guests also run."""
    return equal_hosts(count, cores=2.0, threads=2, memory_mib=2048)


def steady_guests(arrive_s, vcpus, memory_mib, busy, end_s=p.SLOT_S, visible_s=0.0, build_s=0.0):
    """Return a trace of guests that stay, have constant demand and need no memory lines.

    :param busy: cores per vCPU; like all others, one value for all guests or one for each
    """
    trace = object.__new__(loads.Trace)
    count = len(arrive_s)
    for name, values, kind in (
        ('arrive_s', arrive_s, float),
        ('leave_s', np.inf, float),
        ('vcpus', vcpus, np.int64),
        ('memory_mib', memory_mib, np.int64),
        ('disk_gb', 0, np.int64),
        ('dedicated', False, bool),
        ('lines', 0.0, float),
        ('visible_s', visible_s, float),
        ('build_s', build_s, float),
    ):
        setattr(trace, name, np.array(np.broadcast_to(values, count), kind))
    trace.request = np.arange(count)
    slots = int(end_s // p.SLOT_S) + 2
    trace.wants = np.repeat(np.broadcast_to(busy, count)[:, None], slots, axis=1).astype(float)
    trace.bursts = np.ones((count, 1))
    return trace


@contextlib.contextmanager
def other_parameters(**values):
    """Temporarily change the values of parameters."""
    before = {name: getattr(p, name) for name in values}
    vars(p).update(values)
    try:
        yield
    finally:
        vars(p).update(before)


def start_all(shape, trace, way=inside.placed):
    """Return a fleet of one host, whose guests have all started."""
    fleet = fleets.Fleet(shape, trace, way)
    for guest in range(len(trace.arrive_s)):
        fleet.claim(guest, 0)
        fleet.start(guest, 0.0)
    return fleet


def put_on_node(fleet, guest, node):
    """Move a guest of the first host, with its memory, to one of its nodes."""
    row = inside.nodes.parts((node,), fleet.hosts.cores[0])
    fleet.move(guest, row, row)


def level_out(fleet):
    """Let the host move guests until no move levels its nodes any further."""
    everyone = np.arange(len(fleet.host))
    want = fleet.trace.want(everyone, 0.0)
    for now_s in range(p.TICK_S, 24 * 3600, p.TICK_S):
        running = losses.Running(fleet, fleet.trace, everyone, want)
        fleet.measure(running, np.zeros(fleet.hosts.cores.shape), now_s)
        if now_s % p.MOVE_EVERY_S == 0 and not inside.placed.relieve(fleet, everyone):
            break
    return fleet


# ---- bench-crowded -----------------------------------------------------------------------


def crowded(orders, model):
    """Return {ratio: its value in each order} for the work done on the crowded host."""
    rng, shape = random.Random(ORDERS_SEED), lab()
    done = []
    for _ in range(orders):
        duties = np.array(rng.sample(DUTIES, len(DUTIES)))
        trace = steady_guests(np.zeros(len(duties)), 1, 16, duties / 100)
        trace.bursts = duty_factors(duties)
        held = start_all(shape, trace)
        static, floating = work(held, model), work(start_all(shape, trace, inside.floating), model)
        done.append((static, floating, work(level_out(held), model)))
    static, floating, ours = np.array(done).T
    return {'ours ÷ held for good': ours / static, 'ours ÷ floating': ours / floating}


def duty_factors(duties):
    """Return factors of guests' demand that make them busy or idle, as the lab's are."""
    rng = np.random.default_rng(SEED)
    busy = np.arange(POSITIONS) < duties[:, None] * POSITIONS / 100
    return rng.permuted(busy, axis=1) * (100 / duties)[:, None]


def work(fleet, model):
    """Return how much work all guests of a fleet get done together [cores]."""
    everyone = np.arange(len(fleet.host))
    want = fleet.trace.want(everyone, 0.0)
    running = losses.Running(fleet, fleet.trace, everyone, want)
    if model == MODELS[0]:
        return want.sum() - losses.by_pressure(running, fleet.hosts)[0].sum()
    second = losses.ProcessorSharing(fleet.hosts)
    lost = [second.lost(running, fleet.trace.bursts).sum() for _ in range(TICKS)]
    return want.sum() - np.mean(lost)


# ---- The stack ---------------------------------------------------------------------------

#: As where it was measured, with fake compute hosts; the hosts report every 20 s.
BOOTS, WITHIN_S, COMPUTES, VCPUS, MIB = 100, 10.0, 20, 4, 8192
CORES, THREADS, NODE_MIB, PRESSURE, CORES_PER_VCPU = 20.0, 32, 131072, 0.3, 0.5
BUILDS_S, INTERVAL_S, PUBLISHED_S, SETTLED_S = (0.5, 18.0), 20, 10, 300
HOST_NAMES = 'cmp1', 'cmp2'
#: A server of the scenario; each CPU kept busy from outside takes as much as it has [cores].
PLAIN = {'vcpus': 1, 'memory_mib': 128, 'busy': 0.0}


def herd(policy, workers, lag_s, decisions_per_s, rounds):
    """Return the largest number of guests on a host, as the mean of rounds.

    :param lag_s: time from decision to count, the median and the maximum
    :param decisions_per_s: by all workers together, as the machine allows
    """
    pace = {'DECIDE_S': workers / decisions_per_s, 'DECIDE_HOST_S': 0.0}
    with other_parameters(AUDIT_S=INTERVAL_S, TICK_S=PUBLISHED_S, **pace):
        rows = [_round(policy, workers, lag_s, seed) for seed in range(SEED, SEED + rounds)]
    return float(np.mean(rows))


def _round(policy, workers, lag_s, seed):
    rng = np.random.default_rng(seed)
    cell = cells.Cell(0, 'equal', 'mixed', 'other', workers=workers)
    cell.shortened(COMPUTES, SETTLED_S, SETTLED_S)
    shape = equal_hosts(COMPUTES, CORES, THREADS, NODE_MIB)
    # Other load of the hosts: a guest on each node that Nova does not count.
    residents = COMPUTES * shape.nodes
    asked = SETTLED_S + np.arange(BOOTS) * WITHIN_S / BOOTS
    load = PRESSURE * CORES / CORES_PER_VCPU
    trace = steady_guests(
        np.append(np.full(residents, np.inf), asked),
        np.append(np.full(residents, load), np.full(BOOTS, VCPUS)),
        np.append(np.zeros(residents), np.full(BOOTS, MIB)),
        CORES_PER_VCPU,
        2 * SETTLED_S,
        np.interp(rng.random(residents + BOOTS), (0, 0.5, 1), (p.VISIBLE_S[0], *lag_s)),
        rng.uniform(*BUILDS_S, residents + BOOTS),
    )
    ran = region.Region(cell, shape, trace, policies.POLICIES[policy], seed)
    for guest in range(residents):
        ran.fleet.host[guest] = guest // shape.nodes
        ran.fleet.start(guest, 0.0)
    return ran.run().given.max()


def plain_fleet(count):
    """Return the scenario's two hosts and this number of servers that want next to nothing."""
    trace = steady_guests(np.zeros(count), **PLAIN, build_s=1.0)
    return fleets.Fleet(lab(len(HOST_NAMES)), trace, inside.placed)


def eight():
    """Return how many guests of one request each node gets."""
    cell = cells.Cell(0, 'equal', 'mixed', 'other').shortened(len(HOST_NAMES), 60, 120)
    # After the first audit of each host.
    trace = steady_guests(np.full(8, 75.0), **PLAIN, end_s=180)
    trace.request[:] = 0
    shape = lab(len(HOST_NAMES))
    ran = region.Region(cell, shape, trace, policies.POLICIES['numa-pressure'], SEED)
    ran.run()
    return ' '.join('%d' % count for count in np.sort(ran.fleet.node_guests.ravel()))


def beside_a_loaded_host(policy):
    """Return the hosts of two guests while a CPU of each node of cmp1 is busy from outside.

    Nova counts the first only after the second has been decided on.
    """
    fleet, rng = plain_fleet(2), np.random.default_rng(SEED)
    fleet.node_demand[0] = 1.0
    for phase in range(p.PHASES):
        fleet.publish(phase, 0.0, rng)
    view = fleets.View(fleet, np.arange(fleet.hosts.count), 0.0)
    names = []
    for guest in range(2):
        scores = policies.POLICIES[policy].scores(view, fleet.trace, guest)
        names.append(HOST_NAMES[region.ordered(scores, policies.POLICIES[policy], rng)[0]])
    return ' '.join(names)


def beside_a_loaded_node():
    """Return the nodes of two guests that start one after the other while node 0 is busy."""
    fleet = plain_fleet(2)
    nodes = []
    for guest in range(2):
        fleet.node_demand[0] = 2.0, 0.0
        fleet.claim(guest, 0)
        fleet.start(guest, 0.0)
        nodes.append('node %d' % fleet.cpu_parts[guest].argmax())
        fleet.end(guest)
        fleet.node_young[:] = 0.0
    return ' '.join(nodes)


def imbalance():
    """Return how many of three busy guests of node 0 each node has in the end."""
    fleet = start_all(lab(), steady_guests(np.zeros(3), 1, 128, 1.0))
    for guest in range(3):
        put_on_node(fleet, guest, 0)
    return ' '.join('%d' % count for count in level_out(fleet).node_guests[0])


# ---- Stock Nova --------------------------------------------------------------------------


class Watched(region.Region):
    """A run in which the use and the waiting of hosts are recorded during the evaluated time.

    :ivar contention: fraction of a host's demand that waited, the maximum of all ticks and hosts
    :ivar busy: fraction of a host's capacity that was served, likewise
    """

    contention = busy = 0.0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._there, self._seconds, self._served = [], *np.zeros((2, len(self.trace.arrive_s)))

    def _tick(self, now_s, payload):
        super()._tick(now_s, payload)
        at = np.flatnonzero(self.fleet.state == fleets.RUNS)
        if now_s <= self.cell.fill_s or not len(at):
            return
        fleet, want = self.fleet, self.trace.want(at, now_s)
        running = losses.Running(fleet, self.trace, at, want)
        running.lines = np.zeros(len(at))  # only what waits for CPUs
        waited, _ = losses.by_pressure(running, self.hosts)
        of_hosts = np.bincount(fleet.host[at], want, self.hosts.count)
        waits = np.bincount(fleet.host[at], waited, self.hosts.count)
        self.contention = max(self.contention, float((waits / np.maximum(of_hosts, 1e-9)).max()))
        self.busy = max(self.busy, float(((of_hosts - waits) / self.hosts.cores.sum(1)).max()))
        self._there.append(len(at))
        self._seconds[at] += p.TICK_S
        self._served[at] += (want - waited) * p.TICK_S

    def guests(self):
        """Return the mean number of guests of a host."""
        return float(np.mean(self._there) / self.hosts.count)

    def below(self, use):
        """Return the fraction of guests that used less of their vCPUs than that."""
        at = self._seconds > 0
        return float(np.mean(self._served[at] < use * self._seconds[at] * self.trace.vcpus[at]))


def stock_region(load, hosts_count, seconds):
    """Run a region with Nova's defaults and floating guests, filled for as long as the table's."""
    (cell,) = (cell for cell in cells.cells() if cell.name == 'equal %s other' % load)
    filled_s = min(p.FILL_S, seconds / 2)
    cell.shortened(hosts_count, filled_s, seconds - filled_s)
    shape, trace = loads.drawn(cell, SEED)
    policy = policies.POLICIES[policies.SPREAD]
    ran = Watched(cell, shape, trace, policy, SEED, inside.floating)
    ran.run()
    return ran
