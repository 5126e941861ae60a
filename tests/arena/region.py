# SPDX-License-Identifier: Apache-2.0
"""The loop: requests, scheduler workers with stale views, claims, builds, measurements.

A worker reads Nova's database when it takes up a request and claims when it has decided. Nova's
counts include the claim a while later, the host runs the guest when it is built, and its agent
publishes what it wants at later audits. A decision taken in the meantime sees none of it.
"""

import collections
import heapq

import numpy as np

from nova_numa_pmc.core.fleet import COST_CORES
from tests.arena import fleet as fleets, inside, losses, parameters as p, relief

REQUEST, COMMIT, VISIBLE, START, LEAVE, FORGET, AUDIT, TICK, ARRIVE = range(9)


class Result:
    """The outcome of a run.

    :ivar wanted, lost, lost_second: core-seconds of each guest in the evaluated time; ``lost``
        by the definitions, ``lost_second`` by processor sharing
    :ivar placed, refused: guests; ``large`` and ``large_placed`` of the large flavors
    :ivar migrated: guests that were moved to other hosts
    :ivar emptied: hosts without a guest, the mean over the evaluated time
    :ivar audits, sent: audits of hosts with agents, and those after which metrics were sent
    :ivar most_new: the largest number of guests that one host was given within ten seconds of the
        evaluated time
    :ivar agent: which hosts have an agent
    :ivar given: how many guests each host was given in the evaluated time
    :ivar below: how many hosts (without, with an agent) had no pressed node, summed over that
        time
    """

    def __init__(self, guests, agent):
        """Create an empty result."""
        self.agent, self.given, self.below = agent, np.zeros(len(agent), np.int64), np.zeros(2)
        self.wanted, self.lost, self.lost_second = np.zeros((3, guests))
        self.placed = self.refused = self.large = self.large_placed = self.decisions = 0
        self.audits = self.sent = self.migrated = 0
        self.emptied = 0.0
        self.ticks = self.most_new = self.conflicts = 0
        self.saturated = 0.0

    def ratios(self, second=False):
        """Return the loss ratio of each guest that wanted anything."""
        lost = self.lost_second if second else self.lost
        there = self.wanted > 0
        return lost[there] / self.wanted[there]


class Region:
    """A run of one policy on one trace."""

    def __init__(self, cell, hosts, trace, policy, seed, way=inside.placed, sampler=None):
        """Prepare the run.

        :param policy: one of :mod:`tests.arena.policies`
        :param way: how guests are placed within their hosts, and moved there
        :param sampler: called with (view, guest, scores) for each decision
        """
        self.cell, self.hosts, self.trace = cell, hosts, trace
        self.fleet = fleets.Fleet(hosts, trace, way)
        self._policy, self._way, self._sampler = policy, way, sampler
        self._relief = relief.Relief(self.fleet, cell.fill_s) if policy.relieves else None
        self._choices = np.random.default_rng((seed, cell.number, 2))
        self._noise = np.random.default_rng((seed, cell.number, 3))
        self._queue: list[tuple] = []
        self._order = 0
        self._free_s = [0.0] * cell.workers
        self._second = losses.ProcessorSharing(hosts)
        self._recent: collections.deque[tuple[float, int]] = collections.deque()
        self._new = np.zeros(hosts.count, np.int64)
        self.result = Result(len(trace.arrive_s), hosts.agent)

    def run(self):
        """Run to the end; return the result."""
        end_s = self.cell.fill_s + self.cell.judged_s
        for at in range(int(end_s / p.AUDIT_S)):
            for phase in range(p.PHASES):
                part = 1.0 if self.cell.audits_at_once else (phase + 1) / p.PHASES
                self._push((at + part) * p.AUDIT_S, AUDIT, phase)
        for at in range(int(end_s / p.TICK_S)):
            self._push((at + 1) * p.TICK_S, TICK, None)
        firsts = np.flatnonzero(np.diff(self.trace.request, prepend=-1))
        several = np.split(np.arange(len(self.trace.request)), firsts[1:])
        for guests in several:
            self._push(self.trace.arrive_s[guests[0]], REQUEST, guests)
        handlers = (
            self._request,
            self._commit,
            self._visible,
            self._start,
            self._leave,
            self._forget,
            self._audit,
            self._tick,
            self._arrive,
        )
        queue = self._queue
        while queue and queue[0][0] <= end_s:
            now_s, kind, _, payload = heapq.heappop(queue)
            handlers[kind](now_s, payload)
        return self.result

    def _push(self, at_s, kind, payload):
        self._order += 1
        heapq.heappush(self._queue, (float(at_s), kind, self._order, payload))

    # ---- Requests ------------------------------------------------------------------------

    def _request(self, now_s, guests):
        """Let a worker take up a request; queue it if none is free."""
        free_s = self._free_s
        worker = free_s.index(min(free_s))
        if free_s[worker] > now_s:
            self._push(free_s[worker], REQUEST, guests)
            return
        looked_at = min(self.hosts.count, p.CANDIDATES)
        ends_s = now_s + p.DECIDE_S + p.DECIDE_HOST_S * looked_at
        free_s[worker] = ends_s
        # Placement is asked once for all instances of a request.
        at = self.fleet.candidates(guests[0], p.CANDIDATES)
        columns = self.fleet.columns
        if len(guests) > 1:  # Nova's own, from which it subtracts each instance
            columns = dict(columns)
            for name in fleets.COUNTED:
                columns[name] = columns[name].copy()
        orders = [self._decide(now_s, guest, at, columns) for guest in guests]
        self._push(ends_s, COMMIT, (guests, orders))

    def _decide(self, now_s, guest, at, columns):
        """Return the candidates in the order in which they are tried."""
        self.result.decisions += 1
        if not len(at):
            return at
        view = fleets.View(self.fleet, at, now_s, columns)
        scores = self._policy.scores(view, self.trace, guest)
        if self._sampler is not None:
            self._sampler(view, guest, scores)
        order = at[ordered(scores, self._policy, self._choices)]
        if columns is not self.fleet.columns:
            trace, host = self.trace, order[0]
            columns['vcpus_used'][host] += trace.vcpus[guest]
            columns['pinned_vcpus'][host] += trace.vcpus[guest] * trace.dedicated[guest]
            columns['ram_used_mib'][host] += trace.memory_mib[guest]
            columns['disk_used_gb'][host] += trace.disk_gb[guest]
            columns['instances'][host] += 1
            columns['io_ops'][host] += 1
        return order

    def _commit(self, now_s, payload):
        """Claim for each guest of a request the first host that still has room, or refuse all."""
        guests, orders = payload
        fleet, result, trace = self.fleet, self.result, self.trace
        large = int((trace.vcpus[guests] >= p.LARGE_VCPUS).sum())
        judged = now_s >= self.cell.fill_s
        result.large += large * judged
        for done, (guest, order) in enumerate(zip(guests, orders)):
            position = next(
                (at for at, host in enumerate(order) if fleet.has_room(host, guest)), -1
            )
            if position < 0:
                for claimed in guests[:done]:
                    fleet.end(claimed)
                fleet.state[guests] = fleets.REFUSED
                result.refused += len(guests)
                return
            result.conflicts += position > 0
            fleet.claim(guest, order[position])
        result.placed += len(guests)
        result.large_placed += large * judged
        for guest in guests:
            host = fleet.host[guest]
            result.given[host] += judged
            self._herd(now_s, host, judged)
            self._push(now_s + trace.visible_s[guest], VISIBLE, guest)
            self._push(now_s + trace.visible_s[guest] + trace.build_s[guest], START, guest)

    def _herd(self, now_s, host, judged):
        recent, new = self._recent, self._new
        while recent and recent[0][0] <= now_s - 10:
            new[recent.popleft()[1]] -= 1
        recent.append((now_s, host))
        new[host] += 1
        if judged:
            self.result.most_new = max(self.result.most_new, int(new[host]))

    def _visible(self, now_s, guest):
        del now_s
        self.fleet.count(guest, 1, building=1)

    def _start(self, now_s, guest):
        self.fleet.start(guest, now_s)
        self.fleet.columns['io_ops'][self.fleet.host[guest]] -= 1
        self._push(max(now_s, self.trace.leave_s[guest]), LEAVE, guest)

    def _leave(self, now_s, guest):
        self.fleet.end(guest)
        self._push(now_s + self.trace.visible_s[guest], FORGET, guest)

    def _forget(self, now_s, guest):
        del now_s
        self.fleet.count(guest, -1, building=0)

    # ---- Measurements --------------------------------------------------------------------

    def _audit(self, now_s, phase):
        audits, sent = self.fleet.publish(phase, now_s, self._noise)
        if now_s > self.cell.fill_s:
            self.result.audits += audits
            self.result.sent += sent

    def _tick(self, now_s, payload):
        del payload
        guests = np.flatnonzero(self.fleet.state == fleets.RUNS)
        if not len(guests):
            return
        want = self.trace.want(guests, now_s)
        running = losses.Running(self.fleet, self.trace, guests, want)
        lost, traffic = losses.by_pressure(running, self.hosts)
        self.fleet.measure(running, traffic, now_s)
        if now_s % p.MOVE_EVERY_S == 0:
            self._way.relieve(self.fleet, guests)
        if now_s <= self.cell.fill_s:
            return
        if self._relief and now_s % p.RELIEF_EVERY_S == 0:
            for guest, target, seconds in self._relief.begin(now_s):
                self.result.lost[guest] += COST_CORES * seconds
                self.result.lost_second[guest] += COST_CORES * seconds
                self._push(now_s + seconds, ARRIVE, (guest, target))
        result = self.result
        result.wanted[guests] += want * p.TICK_S
        result.lost[guests] += lost * p.TICK_S
        result.lost_second[guests] += self._second.lost(running, self.trace.bursts) * p.TICK_S
        taken, below = self.fleet.taken_mib, self.fleet.pressures() < p.MOVE_FLOOR
        result.below += np.bincount(self.hosts.agent[below], minlength=2)
        result.ticks += 1
        result.emptied += (np.count_nonzero(taken == 0) - result.emptied) / result.ticks

    def _arrive(self, now_s, payload):
        guest, target = payload
        if self._relief.end(guest, target, now_s):
            stopped_cores = p.RELIEF_STOPPED_S * self.fleet.wanted[guest]
            self.result.lost[guest] += stopped_cores
            self.result.lost_second[guest] += stopped_cores
            self.result.migrated += 1


def ordered(scores, policy, rng):
    """Return all positions in the order in which they are tried.

    As in Nova, they are sorted, with equals in their order, and one of the first ``subset``,
    chosen at random, is put before the others. Other schedulers try equals at random
    (``policy.ties``).
    """
    if policy.ties == 'random':
        order = np.lexsort((rng.random(len(scores)), -scores))
    else:
        order = np.argsort(-scores, kind='stable')
    if policy.subset > 1:
        pick = int(rng.integers(min(policy.subset, len(order))))
        order[: pick + 1] = np.roll(order[: pick + 1], 1)
    return order
