# SPDX-License-Identifier: Apache-2.0
"""Where a guest would go now, with nothing recorded: the hook's own decision, in a draft."""

from __future__ import annotations

import os

from nova_numa_pmc import model, promises, state
from nova_numa_pmc.core import candidates, domains, placement, ranking
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import guests
from nova_numa_pmc.operating import naming


class Draft(state.Promises):
    """The record of promises as it is, to decide in without a lock and without writing.

    A start that goes on meanwhile isn't waited for: this shows one moment.

    :ivar problem: why the record could not be read, else None
    """

    def __init__(self, options, root):
        self.problem = None
        try:
            record = state.read(os.path.join(root, options.state_dir[1:]),
                                state.read_boot_id(root))
        except StateError as error:
            record, self.problem = None, str(error)
        record = record or state.Promises()
        super().__init__(record.promises, record.rotation)

    def put(self, promise):
        """Take a promise into the draft, in place of the guest's earlier one."""
        self.promises[promise.uuid] = promise

    def drop(self, uuid):
        """Take a promise out of the draft."""
        self.promises.pop(uuid, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def decide(guest, options, root):
    """Decide where a guest would go if it started now; nothing is recorded or written.

    :param guest: :class:`model.Guest`; one that runs is taken off the host first
    :param options: :class:`settings.Settings`
    :returns: (:class:`promises.Decision`, :class:`model.Promise` that the host keeps for the
        guest, None: a new one)
    :raises NumaPmcError: the host can't be read
    """
    draft = Draft(options, root)
    recorded = draft.promises.get(guest.uuid)
    return promises.decide(guest, options, root, 0, ledger=draft), recorded


def places(decision, limits):
    """Order the places that were to be had.

    :param decision: :class:`promises.Decision`
    :returns: list of (node ids of the CPUs, node ids of the memory, pressure left on them,
        {part of the key: value}), best first; empty: the guest is left alone
    """
    if decision.request.placed_by or decision.request.policy == model.NONE:
        return []
    merged, members = domains.merged(decision.view, limits)
    ask = candidates.Ask(merged, members, decision.view, decision.request)

    def ids(positions):
        return tuple(sorted(decision.view.nodes[member].id
                            for at in positions for member in members[at]))

    return [(ids(rank.candidate.cpus), ids(rank.candidate.mems), rank.pressure,
             dict(zip(ranking.KEY_PARTS, rank.key)))
            for rank in placement.decide(ask, limits).ranks]


def running(name, root):
    """Return the running guest of a name, a uuid or libvirt's id.

    :raises UnknownGuest: there is none, or it can't be read; says which are there
    """
    found, problems = guests.read_running(root)
    return naming.find(name, found, problems)
