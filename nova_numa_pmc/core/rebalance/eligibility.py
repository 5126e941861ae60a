# SPDX-License-Identifier: Apache-2.0
"""Decide whether a guest may be held or moved; each reason not to has a code and a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.core.host_view import policy_of
from nova_numa_pmc.core.placement import reasons
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

#: Code of a rule that other modules refer to.
UNKNOWN = 'unknown'
#: Code for a guest that the command did not name, which says nothing about the guest itself.
NOT_NAMED = 'not_named'

_NO_PROMISE = model.Promise('', '', (), (), 1, 0)


class _Case(Record):
    """A guest to which rules are applied, with the arguments of :func:`why_fixed`."""

    guest: model.Guest
    promise: model.Promise = _NO_PROMISE
    host: model.Topology | None = None
    measured_since_ns: int | None = None


class Rule(Record):
    """A rule by which a guest is left alone.

    :param applies: a function that returns whether the rule applies to a case
    :param text: the reason as text
    """

    code: str
    applies: Callable[[_Case], object]
    text: str


#: Rules that apply even to a planned or requested move: there is an override for the guest, or
#: libvirt is working on it, or it does not run.
RULES_ALWAYS = (
    Rule(
        'pinned_by_operator',
        lambda case: case.guest.override == model.PIN,
        'pinned by the operator',
    ),
    Rule('ignored', lambda case: case.guest.override == model.IGNORE, 'ignored by the operator'),
    Rule('active_job', lambda case: case.guest.job, 'a libvirt job is running'),
    Rule('paused', lambda case: case.guest.state not in (None, 'running'), 'not running'),
)
#: All rules. The first one that applies is reported.
RULES = (
    *RULES_ALWAYS,
    Rule(
        'other_pool',
        lambda case: case.host is not None and not is_in_pool(case.guest, case.host),
        'its CPUs are outside the floating pool',
    ),
    Rule(
        UNKNOWN,
        lambda case: case.promise is _NO_PROMISE,
        'not known to libvirt on this host, or without a promise',
    ),
    Rule('starting', lambda case: not case.promise.started or _is_new(case), 'starting'),
    Rule(
        reasons.PLACED_BY_OTHERS,
        lambda case: case.guest.placed_by or case.promise.origin == model.BY_OTHERS,
        model.ORIGIN_TEXTS[model.BY_OTHERS],
    ),
    Rule(
        'policy_none',
        lambda case: policy_of(case.guest) == model.NONE,
        'its flavor excludes it from placement',
    ),
    Rule(
        'spread',
        lambda case: policy_of(case.guest) == model.SPREAD,
        'its flavor requires spreading',
    ),
    # Because of VFIO, SEV or mlock.
    Rule(
        'locked',
        lambda case: case.guest.locked or case.guest.pci_devices,
        'its memory cannot be moved',
    ),
    Rule(
        'huge_pages', lambda case: case.guest.page_bytes or case.promise.page_bytes, 'huge pages'
    ),
    Rule('bound', lambda case: case.promise.bound, 'bound to its nodes'),
)

#: {code: its text for operators}
TEXTS = {**{rule.code: rule.text for rule in RULES}, NOT_NAMED: ''}


def why_fixed(
    guest: model.Guest | None,
    promise: model.Promise | None,
    host: model.Topology | None = None,
    measured_since_ns: int | None = None,
) -> str:
    """Return the code of the reason not to touch a guest; empty if there is none.

    :param guest: the guest as its XML defines it; None if that is not known
    :param promise: its promise; None if it has none
    :param host: a host whose nodes' ``cpus`` are those of the floating pool; None if the guest's
        pool does not matter
    :param measured_since_ns: CLOCK_BOOTTIME at the beginning of the measured interval; None if the
        guest's age does not matter
    """
    if guest is None:
        return UNKNOWN
    known_promise = _NO_PROMISE if promise is None else promise
    return _first_reason(RULES, _Case(guest, known_promise, host, measured_since_ns))


def why_not_now(guest: model.Guest) -> str:
    """Return the code of the reason not to make a planned move of a guest; empty if none."""
    return _first_reason(RULES_ALWAYS, _Case(guest))


def is_in_pool(guest: model.Guest, host: model.Topology) -> bool:
    """Return whether the CPUs of an unpinned guest are all in the floating pool.

    The rebalancer considers only the floating pool, and leaves other guests where they are. A
    guest that others have placed counts as being in the pool.
    """
    allowed_cpus = guest.allowed_cpus
    if guest.placed_by or allowed_cpus is None:
        return True
    return not any(pools.usable_cpus_of(node) & allowed_cpus - node.cpus for node in host.nodes)


def _first_reason(rules: tuple[Rule, ...], case: _Case) -> str:
    return next((rule.code for rule in rules if rule.applies(case)), '')


def _is_new(case: _Case) -> bool:
    """Return whether a guest was given its place after the measured interval began.

    The measurements then do not show the guest at its place for the whole interval.
    """
    began_ns = case.measured_since_ns
    return began_ns is not None and case.promise.since_ns > began_ns
