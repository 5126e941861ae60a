# SPDX-License-Identifier: Apache-2.0
"""Ways to choose a host: one function each, behind one interface.

A function takes a :class:`tests.arena.fleet.View`, columns of the hosts that have room, and an
:class:`Asked`, and returns a score for each host; the highest is the best. Its docstring names the
owner, the version, the formula and the deviations; "-like" means that the owner publishes no
formula. Whether it chooses among the first few, and how ties are broken, is up to
:class:`Policy`.

None of them models filters other than Placement's inventories, aggregates, or server groups.
"""

import uuid

from tests.arena import inside, parameters as p
from tests.arena.policies import nova_weights, others, our_weigher


class Asked:
    """A guest that needs a host.

    :ivar vcpus, memory_mib, disk_gb, dedicated: of its flavor
    :ivar instance_uuid: its name
    :ivar true_cores, true_bytes: its future mean demand, which only an oracle knows
    """

    def __init__(self, trace, guest):
        """Take the guest from a trace."""
        self.vcpus = int(trace.vcpus[guest])
        self.memory_mib = int(trace.memory_mib[guest])
        self.disk_gb = int(trace.disk_gb[guest])
        self.dedicated = bool(trace.dedicated[guest])
        self.instance_uuid = str(uuid.UUID(int=int(guest)))
        self._trace, self._guest = trace, guest

    @property
    def true_cores(self):
        """Return its mean demand [cores]."""
        return float(self._trace.wants[self._guest].mean() * self.vcpus)

    @property
    def true_bytes(self):
        """Return its mean traffic [bytes/s]."""
        return self.true_cores * self._trace.lines[self._guest] * 64


class Policy:
    """A function, and how its scores are used.

    :ivar subset: how many of the best it chooses among (``host_subset_size``)
    :ivar ties: how ties are broken: 'first', as Nova, or 'random', as others
    :ivar way: how hosts place guests, and whether they move them
    :ivar relieves: whether guests are moved to other hosts (:mod:`tests.arena.relief`)
    """

    def __init__(self, name, function, subset=1, ties='first', way=inside.placed, relieves=False):
        """Store the function and its use."""
        self.name, self.function, self.subset, self.ties = name, function, subset, ties
        self.way, self.relieves = way, relieves

    def scores(self, view, trace, guest):
        """Return each candidate's score."""
        return self.function(view, Asked(trace, guest))


ORACLE, ORACLE_OF_RUNNING = ORACLES = 'oracle', 'oracle-of-running'
SPREAD, SPREAD_10, PACK, OURS = 'stock-1', 'stock-10', 'pack', 'numa-pressure'

#: The same with guests that move to other hosts.
SPREAD_FLEET, OURS_FLEET = 'stock-1-fleet', 'numa-pressure-fleet'

#: By name. The contender is any of them; all others except the oracles are its rivals.
POLICIES = {
    policy.name: policy
    for policy in (
        Policy(ORACLE, others.oracle, ties='random'),
        Policy(ORACLE_OF_RUNNING, others.oracle_of_running, ties='random'),
        Policy(SPREAD, nova_weights.stock),
        Policy(SPREAD_10, nova_weights.stock, subset=10),
        Policy(PACK, nova_weights.pack),
        Policy('metrics', nova_weights.metrics, subset=5),
        Policy('best-fit', others.best_fit),
        Policy('random-of-20', others.least_pressed, subset=p.LEAST_PRESSED),
        Policy('target-load-packing', others.target_load_packing, ties='random'),
        Policy('load-variation', others.load_variation_risk_balancing, ties='random'),
        Policy('ovirt-even', others.ovirt_evenly_distributed, ties='random'),
        Policy(OURS, our_weigher.numa_pressure),
        Policy('numa-pressure-still', our_weigher.numa_pressure, way=inside.still),
        Policy('numa-pressure-5', our_weigher.numa_pressure, subset=5),
        Policy('numa-pressure-pack', our_weigher.packing),
        Policy(SPREAD_FLEET, nova_weights.stock, relieves=True),
        Policy(OURS_FLEET, our_weigher.numa_pressure, relieves=True),
    )
}
#: Variants of our weigher, which are not rivals of each other.
VARIANTS = (
    OURS,
    'numa-pressure-still',
    'numa-pressure-5',
    'numa-pressure-pack',
    SPREAD_FLEET,
    OURS_FLEET,
)
