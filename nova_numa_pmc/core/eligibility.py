# SPDX-License-Identifier: Apache-2.0
"""Decide what may be done to a guest; each reason not to has a code and a text.

This is the only table of its kind: the hook, the agent, the commands and the scheduler ask
:func:`why_not` before they place, hold, fetch or move.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable

#: What may be done to a guest: choose a place for it; keep its CPUs where they were promised;
#: bring its memory there; plan to give it another place; carry out what was planned or requested,
#: or go on with it.
PLACE, HOLD, FETCH, MOVE, PROCEED = 'place', 'hold', 'fetch', 'move', 'proceed'
_ALL = (PLACE, HOLD, FETCH, MOVE, PROCEED)

#: Codes of rules that other modules refer to.
UNKNOWN, PLACED_BY_OTHERS, HELD_BY_OTHERS = 'unknown', 'placed_by_others', 'held_by_others'
#: Code for a guest that the command did not name, which says nothing about the guest itself.
NOT_NAMED = 'not_named'

#: Guests are not moved at this age or below: they boot, and have yet to touch their memory [ns].
SETTLING_NS = 60 * 10**9

#: Pins of single threads leave the other threads to us, and numatune leaves the CPUs to us.
_HOLDABLE = {'vcpupin', 'emulatorpin', 'iothreadpin', 'numatune'}

_NO_PROMISE = model.Promise('', '', (), (), 1, 0)


class _Case(Record):
    """A guest to which rules are applied, with the arguments of :func:`why_not`."""

    guest: model.Guest
    promise: model.Promise = _NO_PROMISE
    host: model.Topology | None = None
    measured_since_ns: int | None = None


class Rule(Record):
    """A rule by which a guest is left alone.

    :param applies: a function that returns whether the rule applies to a case
    :param text: the reason as text
    :param actions: what the rule forbids
    """

    code: str
    applies: Callable[[_Case], object]
    text: str
    actions: tuple[str, ...]


#: The first rule that applies is reported.
RULES = (
    Rule(
        'pinned_by_operator',
        lambda case: case.guest.override == model.PIN,
        'pinned by the operator',
        (FETCH, MOVE, PROCEED),
    ),
    Rule(
        'ignored',
        lambda case: case.guest.override == model.IGNORE,
        'ignored by the operator',
        _ALL,
    ),
    Rule(
        'active_job',
        lambda case: case.guest.job,
        'a libvirt job is running',
        (HOLD, FETCH, MOVE, PROCEED),
    ),
    Rule(
        'paused',
        lambda case: case.guest.state not in (None, 'running'),
        'not running',
        (FETCH, MOVE, PROCEED),
    ),
    Rule(
        'other_pool',
        lambda case: case.host is not None and not is_in_pool(case.guest, case.host),
        'its CPUs are outside the floating pool',
        (MOVE,),
    ),
    Rule(
        UNKNOWN,
        lambda case: case.promise is _NO_PROMISE,
        'not known to libvirt on this host, or without a promise',
        (MOVE,),
    ),
    Rule('starting', lambda case: not case.promise.started or _is_new(case), 'starting', (MOVE,)),
    Rule(
        PLACED_BY_OTHERS,
        lambda case: case.guest.placed_by or case.promise.origin == model.BY_OTHERS,
        model.ORIGIN_TEXTS[model.BY_OTHERS],
        (PLACE, FETCH, MOVE, PROCEED),
    ),
    Rule(
        HELD_BY_OTHERS,
        lambda case: is_placed_as_a_whole(case.guest),
        'placed by others as a whole',
        (HOLD,),
    ),
    Rule(
        'policy_none',
        lambda case: case.guest.policy == model.NONE,
        'its flavor excludes it from placement',
        (PLACE, MOVE),
    ),
    Rule(
        'spread',
        lambda case: case.guest.policy == model.SPREAD,
        'its flavor requires spreading',
        (MOVE,),
    ),
    Rule(
        'stays',
        lambda case: case.guest.policy == model.STAY,
        'its flavor has it placed but never moved',
        (FETCH, MOVE),
    ),
    # Because of VFIO, SEV or mlock.
    Rule(
        'locked',
        lambda case: case.guest.locked,
        'its memory cannot be moved',
        (FETCH, MOVE, PROCEED),
    ),
    Rule(
        'huge_pages',
        lambda case: case.guest.page_bytes or case.promise.page_bytes,
        'huge pages',
        (FETCH, MOVE),
    ),
    Rule('bound', lambda case: case.promise.bound, 'bound to its nodes', (FETCH, MOVE)),
    Rule(
        'memory_limited',
        lambda case: case.host is not None and _has_limited_memory(case.guest, case.host),
        'it may not use the memory of all nodes',
        (MOVE,),
    ),
)

#: {code: its text for operators}
TEXTS = {**{rule.code: rule.text for rule in RULES}, NOT_NAMED: ''}


def why_not(
    action: str,
    guest: model.Guest | None,
    promise: model.Promise | None = None,
    host: model.Topology | None = None,
    measured_since_ns: int | None = None,
) -> str:
    """Return the code of the reason not to do something to a guest; empty if there is none.

    :param action: what is to be done: :data:`PLACE` and those beside it
    :param guest: the guest as its XML defines it, with its override; None if that is not known
    :param promise: its promise; None if it has none
    :param host: a host whose nodes' ``cpus`` are those of the floating pool; None if the guest's
        pool does not matter
    :param measured_since_ns: CLOCK_BOOTTIME at the beginning of the measured interval; None if the
        guest's age does not matter
    """
    if guest is None:
        return UNKNOWN
    case = _Case(guest, _NO_PROMISE if promise is None else promise, host, measured_since_ns)
    return next((rule.code for rule in RULES if action in rule.actions and rule.applies(case)), '')


def is_left_alone(guest: model.Guest) -> bool:
    """Return whether a guest is not ours to place, whatever its host and the promises look like.

    :param guest: with the operator's override
    """
    if has_only_memory_nodes(guest):
        guest = guest._replace(placed_by=())
    return bool(why_not(PLACE, guest))


def has_only_memory_nodes(guest: model.Guest) -> bool:
    """Return whether others have chosen the nodes of a guest's memory and nothing else."""
    return bool(guest.mem_mode) and guest.placed_by == ('numatune',)


def is_placed_as_a_whole(guest: model.Guest) -> bool:
    """Return whether others place a guest so that none of its threads is left to us."""
    return not set(guest.placed_by) <= _HOLDABLE


def is_in_pool(guest: model.Guest, host: model.Topology) -> bool:
    """Return whether the CPUs that an unpinned guest may use are all in the floating pool.

    The rebalancer considers only the floating pool, and leaves other guests where they are. A
    guest that others have placed counts as being in the pool.
    """
    own_cpus = None if guest.placed_by else pools.own_cpus(guest, host)
    return own_cpus is None or own_cpus <= pools.all_cpus(host)


def _has_limited_memory(guest: model.Guest, host: model.Topology) -> bool:
    """Return whether a guest may not use the memory of some node on which it may run."""
    mems = guest.limit_mems
    return mems is not None and any(
        node.cpus and node.memory_bytes and node.id not in mems
        for node in pools.with_guest_pool(guest, host).nodes
    )


def _is_new(case: _Case) -> bool:
    """Return whether a guest had not settled at its place when the measured interval began."""
    began_ns = case.measured_since_ns
    return began_ns is not None and case.promise.since_ns > began_ns - SETTLING_NS
