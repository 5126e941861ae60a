# SPDX-License-Identifier: Apache-2.0
"""The places that hosts' hooks would choose, from what hosts have published, vectorised.

Hosts on which the guest fits on one node, or on both of two, are computed in arrays, all others by
the package's own functions.
"""

import math

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.core import pressure
from nova_numa_pmc.core.placement import loss, ranking, reasons
from nova_numa_pmc.core.scheduling import charges
from nova_numa_pmc.core.scheduling.host_columns import HostColumns
from nova_numa_pmc.core.scheduling.outcome import expected_guest, outcome, span_loss_min
from nova_numa_pmc.scheduler import host_estimate
from tests.arena import parameters as p

#: The scheduler's ``stale_after``, in intervals.
STALE_AFTER = 5.0
PLACEMENT_OPTIONS = model.PlacementOptions()
STEP = PLACEMENT_OPTIONS.pressure_step
#: Kinds of place, the best first; a guest of the last is left floating.
ON_ONE, ON_SEVERAL, CPUS_ONLY, FLOATING = range(4)
KINDS = {
    reasons.ON_ONE_NODE: ON_ONE,
    reasons.ON_SPAN: ON_SEVERAL,
    reasons.ON_ALL_NODES: ON_SEVERAL,
    reasons.CPUS_ONLY: CPUS_ONLY,
}
#: Columns that arrivals change, with their names in HostColumns.
CHARGED = {
    'demand': 'demand_cores',
    'traffic': 'bandwidth_bytes_per_sec',
    'promised_mib': 'promised_mib',
    'node_guests': 'guests',
    'node_vcpus': 'vcpus',
    'turn': 'rotation',
}
#: Of scaled values: where they may be a half, of which Python rounds some up and others down.
ROUNDING_ERROR = 1e-6
#: How many charged hosts are kept.
KEPT_MAX = 5000


class Places:
    """The places of guests of one flavor on each host, as far as they have asked.

    That depends on what the host has published and on what arrived since, and is kept with both.

    :ivar demand, traffic: of the host's nodes, including what arrived since, hosts × nodes
    :ivar cpus, memory: parts of the guest there
    :ivar kind: of place
    :ivar rate: as :class:`Known`
    """

    def __init__(self, hosts):
        """Know nothing of hosts yet."""
        count, nodes = hosts.cores.shape
        self.hosts = hosts
        self._state = np.full((3, count), np.nan)
        self.rate, self.kind = np.empty(count), np.empty(count, np.int64)
        self.demand, self.traffic, self.cpus, self.memory = np.empty((4, nodes, count)).swapaxes(
            1, 2
        )

    @classmethod
    def of(cls, view, at, asked):
        """Return the places of a guest's flavor, current for the hosts at positions of a view."""
        kept = view.fleet.__dict__.setdefault('kept_places', {})
        # The size of a dedicated guest makes no difference to where it goes.
        flavor = cls, not asked.dedicated and (asked.vcpus, asked.memory_mib)
        if flavor not in kept:
            kept[flavor] = cls(view.fleet.hosts)
        kept[flavor]._renew(view, at, asked)
        return kept[flavor]

    def _derive(self, hosts):
        """Update what a policy derives for these hosts, which have changed."""

    def _renew(self, view, at, asked):
        """Update those hosts of a view for which something has changed."""
        state = np.array((view.taken_s, came_vcpus(view), view.ram_used_mib - view.recorded_mib))
        state = state[:, at]
        changed = np.flatnonzero((self._state[:, view.at[at]] != state).any(0))
        if not len(changed):
            return
        known = Known(view.only(at[changed]))
        renewed = known.at
        self._state[:, renewed], self.rate[renewed] = state[:, changed], known.rate
        kept = view.fleet.__dict__.setdefault('kept_charges', {})
        charged = _charge(known, asked, kept, view.fleet.distance_rows)
        parts, everywhere = known.cores / known.cores.sum(1)[:, None], slice(None)
        if asked.dedicated:  # Nova pins it: the nodes are not known, so it counts on all of them
            self._keep(known, everywhere, ON_SEVERAL, parts, 1 / known.nodes)
        else:
            best, sure = best_nodes(known, asked.vcpus, asked.memory_mib)
            sure &= _is_least_loss(known, best, asked.vcpus, view.fleet.distance_rows)
            on_best = (np.arange(known.nodes)[:, None] == best).T
            self._keep(known, everywhere, ON_ONE, on_best, on_best)
            if not sure.all():
                on_both = np.flatnonzero(~sure & _on_both(known, asked))
                self._keep(known, on_both, ON_SEVERAL, parts[on_both], 1 / known.nodes)
                sure[on_both] = True
            for position in np.flatnonzero(~sure).tolist():
                host = charged.get(position)
                host = host or host_columns(known, position, view.fleet.distance_rows)
                self._ask(known, position, host, _request(known, position, asked))
        self._derive(renewed)

    def _keep(self, known, at, kind, cpus, memory):
        hosts = known.at[at]
        self.demand[hosts], self.traffic[hosts] = known.demand[at], known.traffic[at]
        self.kind[hosts], self.cpus[hosts], self.memory[hosts] = kind, cpus, memory

    def _ask(self, known, position, host, request):
        """Get the answer for a host from the package's own functions."""
        found = outcome(host, request, PLACEMENT_OPTIONS)
        cores, parts = known.cores[position], np.zeros((2, known.nodes))
        cpus, mems = list(found.cpu_positions), list(found.mem_positions or range(len(cores)))
        parts[0, cpus] = cores[cpus] / cores[cpus].sum()
        parts[1, mems] = 1 / len(mems)
        self._keep(known, position, KINDS.get(found.code, FLOATING), *parts)


def came_vcpus(view):
    """Return the vCPUs that arrived since hosts published, except for those with dedicated CPUs.

    If none arrived, it is the number of vCPUs that have left.
    """
    came = view.vcpus_used - view.recorded_vcpus
    return np.where(came > 0, came - (view.pinned_vcpus - view.recorded_pinned), came)


def usable(view):
    """Return the positions of hosts whose figures are fresh and plausible."""
    fresh = np.abs(view.now_s - view.taken_s) <= STALE_AFTER * (p.AUDIT_S + p.HEARTBEAT_S)
    demand = view.demand.sum(1) + host_estimate.ROUNDED_CORES * view.demand.shape[1]
    vcpus = view.recorded_vcpus - view.recorded_pinned
    return np.flatnonzero(fresh & (demand >= host_estimate.IDLE_CORES_PER_VCPU * vcpus))


class Known:
    """Columns of hosts whose figures are fresh.

    :ivar rate: traffic per wanted core, or NaN if there is too little to say
    :ivar known_rate: likewise, or 0; hosts × 1
    :ivar per_vcpu: expected demand of a vCPU [cores], hosts × 1
    """

    def __init__(self, view):
        """Take the columns of all hosts of a view."""
        self.at, self.taken_s, self.turn = view.at, view.taken_s, view.turn
        self.cores, self.threads = view.cores, view.threads
        self.memory_mib, self.bandwidth = view.memory_mib, view.bandwidth
        self.demand, self.traffic, self.promised_mib = view.demand, view.traffic, view.promised_mib
        self.node_guests, self.node_vcpus = view.node_guests, view.node_vcpus
        self.known_guests, self.known_sum = view.known_guests, view.known_sum
        self.nodes = self.cores.shape[1]
        self.came_vcpus = came_vcpus(view)
        self.came_mib = view.ram_used_mib - view.recorded_mib
        hundredths = np.rint(100 * self.demand.sum(1))
        with np.errstate(divide='ignore', invalid='ignore'):
            rate = 100 * self.traffic.sum(1) / hundredths
        self.rate = np.where(hundredths >= 50, rate, np.nan)
        self.known_rate = np.where(np.isnan(self.rate), 0.0, self.rate)[:, None]
        self.per_vcpu = per_vcpu(self.known_guests, self.known_sum)[:, None]


def per_vcpu(guests, total):
    """Return the expected demand of a vCPU, given guests and the sum of theirs [cores]."""
    return np.rint(64 * (2.5 + total) / (5 + guests)) / 64


def _on_both(known, asked):
    """Return the hosts of two nodes on which the guest fits on neither node, but on both."""
    free_mib = np.maximum(0, known.memory_mib - known.promised_mib)
    alone = _holds(known, asked.vcpus) & (free_mib >= asked.memory_mib)
    both = (known.threads.sum(1) >= asked.vcpus) & (free_mib.sum(1) >= asked.memory_mib)
    return ~alone.any(1) & both & (known.nodes == 2)


def _holds(known, vcpus):
    """Return which nodes have CPUs and cores for a guest."""
    peak = loss.PEAK_RATIO * known.per_vcpu * vcpus
    needed = np.minimum(np.minimum(peak, vcpus), known.cores.sum(1)[:, None])
    return (known.threads >= vcpus) & (known.cores >= needed)


def _is_least_loss(known, best, vcpus, distance_rows):
    """Return for which hosts no place on several nodes can be better than the best node."""
    rows, wanted = np.arange(len(best)), known.per_vcpu[:, 0] * vcpus
    cores, demand, others, traffic, bandwidth = (
        column[rows, best]
        for column in (known.cores, known.demand, known.node_vcpus, known.traffic, known.bandwidth)
    )
    waits = np.maximum(0.0, waiting(demand + wanted, cores) - waiting(demand, cores))
    waits[np.maximum(others, demand) + vcpus <= cores] = 0.0
    lines = np.where(
        np.isnan(known.rate), loss.LINES_PER_CORE_SEC, known.rate / pressure.LINE_BYTES
    )
    used = (traffic + wanted * lines * pressure.LINE_BYTES) / bandwidth
    queueing_ns = pressure.QUEUEING_FACTOR * pressure.LOCAL_LATENCY_NS * added_queueing(used)
    lost = waits / np.maximum(wanted, loss.DEMAND_MIN_CORES)
    lost += lines * queueing_ns * 1e-9 / pressure.MLP_WITH_PREFETCH
    return lost <= loss.GAIN_MIN_RATIO + lines * span_loss_min(distance_rows, 1.0)


def _charge(known, asked, kept, distance_rows):
    """Charge hosts for what arrived since they published, by the package's own function.

    That depends on a flavor only by how many guests are assumed to have arrived.

    :param kept: what was computed before, for all flavors
    :returns: {position of a host on which something arrived: its HostColumns}
    """
    charged = {}
    for position in np.flatnonzero((known.came_vcpus > 0) | (known.came_mib > 0)).tolist():
        came = int(known.came_vcpus[position]), int(known.came_mib[position])
        request = _request(known, position, asked)
        guests = max(1, min(charges.GUESTS_MAX, round(came[0] / max(1, request.vcpus))))
        place = int(known.at[position]), float(known.taken_s[position]), came, guests
        if place not in kept:
            if len(kept) > KEPT_MAX:
                kept.clear()
            kept[place] = charges.add_arrivals(
                host_columns(known, position, distance_rows),
                *came,
                request,
                PLACEMENT_OPTIONS,
                float(known.per_vcpu[position, 0]),
            )
        charged[position] = kept[place]
    if charged:
        for name, member in CHARGED.items():
            values = [getattr(host, member) for host in charged.values()]
            getattr(known, name)[list(charged)] = values
    return charged


def _request(known, position, asked):
    """Return the guest as the package takes it, for one of the hosts."""
    vcpus, memory_mib = (0, 0) if asked.dedicated else (asked.vcpus, asked.memory_mib)
    per_vcpu_cores = float(known.per_vcpu[position, 0])
    return expected_guest(vcpus, memory_mib, cores_per_vcpu=per_vcpu_cores)


def best_nodes(known, vcpus, memory_mib):
    """Return (each host's best node by the hook's rule, whether arrays suffice to know it)."""
    wanted = known.per_vcpu * vcpus
    added = wanted * known.known_rate
    charged = np.maximum(
        (known.demand + wanted) / known.cores, (known.traffic + added) / known.bandwidth
    )
    fits = _holds(known, vcpus) & (known.memory_mib - known.promised_mib >= memory_mib)
    usual = (
        fits.any(1) & (known.bandwidth >= added).all(1) & (charged < ranking.PRESSURE_MAX).all(1)
    )
    return _least(
        fits,
        (
            lambda: steps(charged),
            lambda: rounded((known.node_vcpus + vcpus) / known.cores, 9),
            lambda: rounded((known.promised_mib + memory_mib) / known.memory_mib, 6),
            lambda: rounded(known.node_guests, 9),
            lambda: ((np.arange(known.nodes)[:, None] - known.turn) % known.nodes).T,
        ),
    ), usual


def steps(pressures):
    """Compute ranking.in_steps() for arrays."""
    whole = np.floor(pressures / STEP + 1e-9)
    above = pressures > 1
    return np.where(above, rounded(pressures, 3) / STEP, whole) if above.any() else whole


def rounded(values, digits):
    """Compute Python's round() for arrays; numpy's rounds 1.1385 down."""
    found, scaled = np.round(values, digits), values * 10**digits
    halves = np.abs(scaled - np.floor(scaled) - 0.5) < ROUNDING_ERROR
    for at in np.argwhere(halves):
        found[tuple(at)] = round(float(values[tuple(at)]), digits)
    return found


def _least(fits, columns):
    """Return for each row the first eligible position that is least by columns."""
    left, rows = fits, np.count_nonzero(fits.any(1))
    for column in columns:
        values = np.where(left, column(), np.inf)
        left = left & (values == values.min(1)[:, None])
        if np.count_nonzero(left) == rows:  # no ties are left
            break
    return left.argmax(1)


def host_columns(known, position, distance_rows):
    """Return the package's form of one of the hosts."""
    return HostColumns(
        known.cores[position].tolist(),
        known.threads[position].tolist(),
        known.memory_mib[position].tolist(),
        known.promised_mib[position].astype(np.int64).tolist(),
        known.node_guests[position].tolist(),
        known.node_vcpus[position].tolist(),
        known.demand[position].tolist(),
        known.traffic[position].tolist(),
        known.bandwidth[position].tolist(),
        None,
        distance_rows,
        tuple((at,) for at in range(known.nodes)),
        rotation=int(known.turn[position]),
    )


def waiting(demand, capacity):
    """Compute loss.mean_waiting_cores() for arrays."""
    sigma = np.sqrt(loss.VARIANCE_RATIO * np.maximum(1e-300, demand))
    excess = demand - capacity
    z = excess / sigma
    below = 0.5 * np.fromiter(map(math.erfc, -z / math.sqrt(2)), float, len(z))
    waits = sigma * np.exp(-z * z / 2) / math.sqrt(2 * math.pi) + excess * below
    return np.where(demand > 0, waits, 0.0)


def added_queueing(used):
    """Compute pressure.added_queueing() for arrays."""
    knee = np.minimum(used, pressure.QUEUEING_KNEE)
    slope = 1 / (1 - knee) ** 2
    return knee / (1 - knee) + (used - knee) * slope + used * slope
