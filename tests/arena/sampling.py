# SPDX-License-Identifier: Apache-2.0
"""Decisions of a run, recorded for the referee: what a scheduler saw and the arrays decided.

Plain arrays, which the referee reads in an environment with Nova.
"""

import pickle

import numpy as np

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_encoder
from nova_numa_pmc.model import MIB
from nova_numa_pmc.state import publication
from tests.arena import fleet as fleets, parameters as p, policies as registry

#: Second 0 of the simulation [s since the epoch].
EPOCH_S = 1_700_000_000
STAMP = '2026-01-01T00:00:00.000000'

#: Candidates of a decision that are kept, drawn from all of them: Nova takes 1 ms for each.
HOSTS_MAX = 24

#: What a host has published, and the other parts of a view that are kept.
PUBLISHED = (
    'taken_s recorded_vcpus recorded_pinned recorded_mib demand traffic promised_mib node_guests '
    'node_vcpus turn known_guests known_sum cores threads memory_mib bandwidth'
).split()
COLUMNS = (
    *PUBLISHED,
    *(
        'at vcpus_used pinned_vcpus ram_used_mib disk_used_gb io_ops instances vcpus ram_mib '
        'busy_ratio loads_taken'
    ).split(),
)
#: Policies whose weights Nova can compute, with the referee's names for its sets of weighers. Ours
#: is examined in each decision, the others in turn.
OURS = 'numa-pressure'
HELD = {OURS: registry.OURS, 'stock': registry.SPREAD, 'pack': registry.PACK, 'metrics': 'metrics'}


class Sampler:
    """A recorder of one in so many decisions.

    :ivar kept: records of plain arrays
    """

    def __init__(self, every, seed):
        """Start with a random phase."""
        self._every, self._seen = every, seed % every
        self._rng = np.random.default_rng((seed, 4))
        self.kept: list[dict] = []

    def __call__(self, view, guest, scores):
        """Record a decision if it is its turn."""
        del scores
        self._seen += 1
        if self._seen % self._every or len(view.at) < 2:
            return
        fleet = view.fleet
        if len(view.at) > HOSTS_MAX:
            at = np.sort(self._rng.choice(view.at, HOSTS_MAX, replace=False))
            view = fleets.View(fleet, at, view.now_s, view.columns)
        view.all_weights = True
        asked = registry.Asked(fleet.trace, guest)
        _, *others = HELD
        examined = OURS, others[len(self.kept) % len(others)]
        record: dict = {name: np.array(getattr(view, name)) for name in COLUMNS}
        record.update(
            now_s=view.now_s,
            distances=fleet.distance_rows,
            asked=(asked.vcpus, asked.memory_mib, asked.disk_gb, asked.dedicated),
            instance_uuid=asked.instance_uuid,
            scores={
                name: registry.POLICIES[HELD[name]].function(view, asked) for name in examined
            },
        )
        self.kept.append(record)


def published(record, at):
    """Return a host as its agent published it."""
    nodes = tuple(
        model.NodeView(
            node,
            record['cores'][at][node],
            int(record['threads'][at][node]),
            int(record['memory_mib'][at][node]) * MIB,
            int(record['promised_mib'][at][node]) * MIB,
            record['node_guests'][at][node],
            record['node_vcpus'][at][node],
            record['demand'][at][node],
            record['traffic'][at][node],
            record['bandwidth'][at][node],
        )
        for node in range(record['cores'].shape[1])
    )
    return publication.Publication(
        EPOCH_S + record['taken_s'][at],
        float(p.AUDIT_S + p.HEARTBEAT_S),
        model.HostView(nodes, record['distances'], int(record['turn'][at])),
        'perf',
        history=model.DemandHistory(int(record['known_guests'][at]), record['known_sum'][at]),
    )


def numa_metrics(record, at):
    """Return the metrics of our monitor as in the column's JSON."""
    sides = metrics_encoder.to_values(
        published(record, at),
        int(record['recorded_vcpus'][at]),
        int(record['recorded_mib'][at]),
        nova_counts=metrics_encoder.NovaCounts(int(record['recorded_pinned'][at])),
    )
    return [
        {
            'name': name,
            'timestamp': STAMP,
            'source': 'numa_pmc',
            'value': 1,
            'numa_membw_values': values,
        }
        for name, values in zip((metrics_encoder.CURRENT, metrics_encoder.MAXIMUM), sides)
    ]


def write(path, records):
    """Write records for the referee."""
    with open(path, 'wb') as file:
        pickle.dump(records, file)


def read(path):
    """Read records that the arena itself wrote."""
    with open(path, 'rb') as file:
        return pickle.load(file)
