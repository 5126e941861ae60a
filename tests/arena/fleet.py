# SPDX-License-Identifier: Apache-2.0
"""A region's state in arrays: promises, running guests, what agents and Nova report of them."""

import numpy as np

from nova_numa_pmc.core.demand import CHANCE_CORES
from tests.arena import hosts as shapes, parameters as p

#: States of a guest.
ABSENT, UNDER_WAY, RUNS, GONE, REFUSED = range(5)
#: Columns of what a scheduler reads in Nova's database; see :class:`View`.
COUNTED = ('vcpus_used', 'pinned_vcpus', 'ram_used_mib', 'disk_used_gb', 'io_ops', 'instances')
MEASURED = (
    'taken_s',
    'recorded_vcpus',
    'recorded_pinned',
    'recorded_mib',
    'demand',
    'traffic',
    'promised_mib',
    'node_guests',
    'node_vcpus',
    'turn',
    'known_guests',
    'known_sum',
    'loads_taken',
    'loads_vcpus',
    'loads_mib',
    'busy_ratio',
    'busy_deviation',
)


class Fleet:
    """Hosts and their guests.

    Placement's promises are current (``taken_*``). Nova's counts (``columns``) lag behind by the
    time that a claim takes to be saved, and the agents' figures in the same ``columns`` by up to
    one audit.
    """

    def __init__(self, hosts, trace, inside):
        """Create a fleet without guests.

        :param inside: a :class:`tests.arena.inside.Way`
        """
        self.hosts, self.trace, self._inside = hosts, trace, inside
        count, nodes, guests = hosts.count, hosts.nodes, len(trace.arrive_s)
        self.distance_rows = tuple(map(tuple, hosts.distances.tolist()))
        self.state = np.zeros(guests, np.int8)
        self.host = np.full(guests, -1)
        self.cpu_parts, self.memory_parts = np.zeros((2, guests, nodes))
        self.far_ns, self.started_s = np.zeros((2, guests))
        # Each guest's history: means over minutes and over a day.
        self.minutes, self.usual = np.zeros((2, guests))
        self.wanted = np.zeros(guests)  # in the last tick
        self.taken_vcpus, self.taken_dedicated, self.taken_mib, self.taken_gb = np.zeros(
            (4, count), np.int64
        )
        self._inventories = (
            hosts.threads.sum(1),
            p.CPU_RATIO * hosts.threads.sum(1),
            hosts.dedicated.sum(1),
            p.RAM_RATIO * hosts.ram_mib - p.RESERVED_MIB,
        )
        # The state of the hosts at this moment.
        self.promised_mib = np.zeros((count, nodes), np.int64, 'F')
        # Of the shared guests that run: their number, their vCPUs, their mean demand [cores].
        self._totals = np.zeros((3, nodes, count)).swapaxes(1, 2)
        self.node_guests, self.node_vcpus, self.true_nodes = self._totals
        self.node_demand, self.node_young, self.node_traffic = np.zeros(
            (3, nodes, count)
        ).swapaxes(1, 2)
        self.placements = np.zeros(count, np.int64)
        self.moves = 0
        self._interval_demand = np.zeros((count, nodes), order='F')  # in the last tick
        self.busy_mean, self.busy_variance = np.zeros((2, count))
        self.known_guests, self.known_sum = np.zeros((2, count))
        # What the oracle knows, for all guests that are claimed; true_nodes for those that run.
        self.true_cores = np.zeros(count)
        self.columns = {name: np.zeros(count, np.int64) for name in COUNTED}
        for name in MEASURED:
            wide = name in ('demand', 'traffic', 'promised_mib', 'node_guests', 'node_vcpus')
            self.columns[name] = np.zeros((count, nodes) if wide else count, order='F')
        self.columns['taken_s'][:] = -np.inf
        self._sent_s = np.full(count, -np.inf)  # when hosts published, by an accurate clock
        self._means = trace.wants.mean(1) * trace.vcpus
        self._amounts = np.stack((np.ones(guests), trace.vcpus, self._means), 1)

    # ---- Promises ------------------------------------------------------------------------

    def candidates(self, guest, most):
        """Return the hosts whose inventories have room, as Placement does.

        :param most: the maximum number, always taken from the start
        """
        return np.flatnonzero(self._room(guest, slice(None)))[:most]

    def _room(self, guest, at):
        trace, (threads, usable, dedicated, usable_mib) = self.trace, self._inventories
        vcpus = trace.vcpus[guest]
        room = (self.taken_mib[at] + trace.memory_mib[guest] <= usable_mib[at]) & (
            self.taken_gb[at] + trace.disk_gb[guest] <= p.DISK_GB
        )
        if trace.dedicated[guest]:
            return room & (self.taken_dedicated[at] + vcpus <= dedicated[at])
        return room & (self.taken_vcpus[at] + vcpus <= usable[at]) & (vcpus <= threads[at])

    def has_room(self, host, guest):
        """Return whether Placement lets a guest claim this host now."""
        return bool(self._room(guest, host))

    def claim(self, guest, host):
        """Promise a host's room to a guest."""
        self.promise(guest, host, 1)
        self.host[guest], self.state[guest] = host, UNDER_WAY

    def promise(self, guest, host, sign):
        """Promise a host's room to a guest (1), or take it back (−1)."""
        trace = self.trace
        pool = self.taken_dedicated if trace.dedicated[guest] else self.taken_vcpus
        pool[host] += sign * trace.vcpus[guest]
        self.taken_mib[host] += sign * trace.memory_mib[guest]
        self.taken_gb[host] += sign * trace.disk_gb[guest]
        if not trace.dedicated[guest]:
            self.true_cores[host] += sign * self._means[guest]

    def count(self, guest, sign, building):
        """Count a guest, or its end, in Nova's database; ``building``: its build."""
        host, columns, trace = self.host[guest], self.columns, self.trace
        columns['vcpus_used'][host] += sign * trace.vcpus[guest]
        columns['pinned_vcpus'][host] += sign * trace.vcpus[guest] * trace.dedicated[guest]
        columns['ram_used_mib'][host] += sign * trace.memory_mib[guest]
        columns['disk_used_gb'][host] += sign * trace.disk_gb[guest]
        columns['instances'][host] += sign
        columns['io_ops'][host] += sign * building

    # ---- Guests --------------------------------------------------------------------------

    def free_mib(self, host):
        """Return the memory that may still be promised on a host's nodes, at least 1 [MiB]."""
        return np.maximum(1, self.hosts.memory_mib[host] - self.promised_mib[host])

    def start(self, guest, now_s):
        """Start a guest on nodes of its host."""
        host = self.host[guest]
        cpus, memory = self._inside(self, host, guest)
        self.cpu_parts[guest], self.memory_parts[guest] = cpus, memory
        self.far_ns[guest] = cpus @ self.hosts.far_ns @ memory
        self.state[guest], self.started_s[guest] = RUNS, now_s
        self.minutes[guest] = self.usual[guest] = 0.0
        self.placements[host] += 1
        self._place(guest, host, 1)

    def _place(self, guest, host, sign):
        cpus, trace = self.cpu_parts[guest], self.trace
        added = np.rint(self.memory_parts[guest] * trace.memory_mib[guest]).astype(np.int64)
        self.promised_mib[host] += sign * added
        if not trace.dedicated[guest]:
            self._totals[:, host] += sign * self._amounts[guest, :, None] * cpus
            if sign > 0 and not self.usual[guest]:  # the expected demand, until it is measured
                self.node_young[host] += cpus * trace.vcpus[guest] * self._expected(host)

    def _expected(self, hosts):
        """Return the expected demand of a vCPU of a new guest on hosts [cores]."""
        return (p.PRIOR_GUESTS * p.PRIOR_CORES_PER_VCPU + self.known_sum[hosts]) / (
            p.PRIOR_GUESTS + self.known_guests[hosts]
        )

    def move(self, guest, cpus, memory):
        """Move a guest to nodes of its host, given fractions of its CPUs and of its memory."""
        host = self.host[guest]
        self._place(guest, host, -1)
        self.cpu_parts[guest], self.memory_parts[guest] = cpus, memory
        self.far_ns[guest] = cpus @ self.hosts.far_ns @ memory
        self._place(guest, host, 1)
        self.moves += 1

    def end(self, guest):
        """Remove a guest from its host, whether it is running or still being built."""
        host = self.host[guest]
        if self.state[guest] == RUNS:
            self._place(guest, host, -1)
        self.promise(guest, host, -1)
        self.state[guest] = GONE

    # ---- Figures -------------------------------------------------------------------------

    def measure(self, running, traffic, now_s):
        """Measure a tick of the running guests, as their hosts' agents do."""
        hosts, guests = self.hosts, running.guests
        age_s = now_s - self.started_s[guests]
        self.wanted[guests] = running.want
        self._remember(guests, running.want, age_s)
        usual, minutes = (
            np.where(running.waits, column[guests], 0.0) for column in (self.usual, self.minutes)
        )
        at = running.hosts
        # Young guests count with the expected demand, or with what they have wanted if that is
        # more.
        young = (age_s < p.SETTLING_S) & running.waits
        excess = young * np.maximum(0.0, running.vcpus * self._expected(slice(None))[at] - usual)
        interval = np.where(running.waits, running.want, 0.0)
        # As agents do: the day's demand, or what minutes exceed by more than chance.
        day, minutes, interval, self.node_young = (
            running.on_nodes(amounts, running.cpus, hosts.count)
            for amounts in (usual, minutes, interval, excess)
        )
        # At least what was sustained for two minutes.
        sustained = np.minimum(interval, self._interval_demand)
        self._interval_demand = interval
        minutes -= np.sqrt(CHANCE_CORES * day)
        self.node_demand = np.maximum(np.maximum(day, minutes), sustained - self.node_young)
        self.node_traffic = traffic
        known = running.waits & (age_s >= p.REPRESENTATIVE_S)
        self.known_guests = np.bincount(at, known, hosts.count)
        self.known_sum = np.bincount(at, known * usual / running.vcpus, hosts.count)
        busy = np.bincount(at, running.want, hosts.count) / hosts.cpus
        change = busy - self.busy_mean
        self.busy_mean += change * p.TICK_S / 900.0
        self.busy_variance += p.TICK_S / 900.0 * (change**2 - self.busy_variance)

    def pressures(self):
        """Return the pressure of each host's most pressed node, as its agent measures it."""
        wanted = (self.node_demand + self.node_young) / self.hosts.cores
        return np.maximum(wanted, self.node_traffic / self.hosts.bandwidth).max(1)

    def _remember(self, guests, wanted, age_s):
        """Add a tick to the guests' histories: means over a horizon, and over a shorter life."""
        for column, horizon_s in ((self.minutes, p.MINUTES_S), (self.usual, p.DAY_S)):
            weight = np.minimum(1.0, p.TICK_S / np.clip(age_s, p.TICK_S, horizon_s))
            column[guests] += weight * (wanted - column[guests])

    def publish(self, phase, now_s, rng):
        """Publish the figures of agents whose audits have this phase; broken agents' are wrong.

        :returns: the number of agents, and how many of them had changed metrics to send
        """
        hosts, columns = self.hosts, self.columns
        # All draw, even those that do not publish, so that the draws are the same for each policy.
        noise = 1 + p.NOISE * np.asfortranarray(rng.standard_normal(hosts.cores.shape))
        audited, stale = hosts.phase == phase, hosts.broken == shapes.STALE
        at = np.flatnonzero(audited & hosts.agent & ~(stale & (columns['taken_s'] > -np.inf)))
        audits = len(at)
        demand = np.maximum(0, self.node_demand * noise) + self.node_young
        # Without what is being built, assuming the mean size of an instance, as the monitor does.
        built = 1 - np.minimum(1, columns['io_ops'] / np.maximum(1, columns['instances']))
        vcpus, pinned, mib = (
            np.rint(built * columns[name])
            for name in ('vcpus_used', 'pinned_vcpus', 'ram_used_mib')
        )
        loaded = columns['loads_taken'] > 0
        self._publish_loads(np.flatnonzero(audited & ~(stale & loaded)), vcpus)
        at = at[self._changed(demand, vcpus, mib, now_s)[at]]
        broken = hosts.broken[at]
        factor = _factor(broken)
        self._sent_s[at] = now_s
        columns['taken_s'][at] = now_s + np.where(broken == shapes.SKEWED, p.SKEW_S, 0.0)
        columns['recorded_vcpus'][at], columns['recorded_mib'][at] = vcpus[at], mib[at]
        columns['recorded_pinned'][at] = pinned[at]
        columns['demand'][at] = np.rint(100 * shapes.some(demand, at) * factor[:, None]) / 100
        traffic = shapes.some(self.node_traffic, at) * factor[:, None]
        columns['traffic'][at] = np.rint(traffic / 1e6) * 1e6
        columns['promised_mib'][at] = shapes.some(self.promised_mib, at)
        for name, current in (('node_guests', self.node_guests), ('node_vcpus', self.node_vcpus)):
            columns[name][at] = np.rint(100 * shapes.some(current, at)) / 100
        columns['turn'][at] = self.placements[at] % hosts.nodes
        columns['known_guests'][at] = np.minimum(1023, self.known_guests[at])
        columns['known_sum'][at] = np.rint(100 * self.known_sum[at]) / 100
        return audits, len(at)

    def _publish_loads(self, at, vcpus):
        """Publish what rivals read, measured by agents of their own that every host has."""
        # Nova's own monitor divides one reading by another, so it cannot be absurd, but 0.
        columns, factor = self.columns, self.hosts.broken[at] != shapes.ZERO
        columns['loads_taken'][at] = 1
        columns['loads_vcpus'][at] = vcpus[at]
        columns['loads_mib'][at] = self.promised_mib[at].sum(1)
        columns['busy_ratio'][at] = np.minimum(1, self.busy_mean[at]) * factor
        columns['busy_deviation'][at] = np.sqrt(self.busy_variance[at]) * factor

    def _changed(self, demand, vcpus, mib, now_s):
        """Return which hosts have changed by more than the deadband (``may_reuse``)."""
        columns, hosts = self.columns, self.hosts
        factor = _factor(hosts.broken)[:, None]
        off = np.abs(factor * demand - columns['demand']) > p.DEADBAND * hosts.cores
        traffic = factor * self.node_traffic
        off |= np.abs(traffic - columns['traffic']) > p.DEADBAND * hosts.bandwidth
        off |= self.promised_mib != columns['promised_mib']
        off |= np.abs(self.node_guests - columns['node_guests']) > 0.01
        off |= np.abs(self.node_vcpus - columns['node_vcpus']) > 0.01
        guests, sent = self.known_guests, columns['known_guests']
        means = self.known_sum / np.maximum(1, guests), columns['known_sum'] / np.maximum(1, sent)
        changed = off.any(1) | (self.placements % hosts.nodes != columns['turn'])
        changed |= np.abs(guests - sent) > np.maximum(1, 0.1 * guests)
        changed |= np.abs(means[0] - means[1]) > p.DEADBAND
        changed |= vcpus != columns['recorded_vcpus']
        changed |= mib != columns['recorded_mib']
        return changed | (now_s - self._sent_s >= p.HEARTBEAT_S) | (not p.DEADBAND)


def _factor(broken):
    """Return the factors by which hosts' figures are multiplied before they are published."""
    factor = np.where(broken == shapes.ABSURD, p.ABSURD_FACTOR, 1.0)
    return np.where(broken == shapes.ZERO, 0.0, factor)


class View:
    """The candidates of a request as a scheduler sees them; all columns contain only these.

    Attributes are Nova's counts and the agents' figures (``COUNTED``, ``MEASURED``), and the
    hosts' own: ``cores``, ``threads``, ``memory_mib``, ``bandwidth``, ``vcpus``, ``cpus``,
    ``ram_mib``.

    :ivar at: the candidates
    :ivar now_s: when it was read
    :ivar known: which hosts' agents have published figures
    :ivar loaded: of which hosts the load is known, as rivals read it
    :ivar all_weights: a policy is to work out each host's weight, not only the best
    """

    all_weights = False

    def __init__(self, fleet, at, now_s, columns=None):
        """Create the view of candidates.

        :param columns: the scheduler's own copy, if it has one
        """
        self.at, self.now_s, self.fleet = at, now_s, fleet
        self.columns = fleet.columns if columns is None else columns

    def __getattr__(self, name):
        """Return a column."""
        columns = self.__dict__['columns']
        whole = columns[name] if name in columns else getattr(self.fleet.hosts, name)
        found = self.__dict__[name] = shapes.some(whole, self.at)
        return found

    def only(self, at):
        """Return a view of some of them, selected by position."""
        return View(self.fleet, self.at[at], self.now_s, self.columns)

    @property
    def known(self):
        """Return which hosts' agents have published figures."""
        return self.taken_s > -np.inf

    @property
    def loaded(self):
        """Return of which hosts the load is known."""
        return self.loads_taken > 0
