# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts by what guests would lose there because of the new one.

Some of Nova's weighers keep promises to users and operators: members of a server group come
together or apart, devices stay free for guests that need them, hosts of a certain image or of a
new hypervisor come first. Each promise counts 1 at most by default, which any penalty would
outweigh, and so would its random part. Therefore a broken promise counts as a loss, too.
"""

from __future__ import annotations

import math
import time
from statistics import median
from typing import TYPE_CHECKING

import nova.conf
from nova import weights as base_weights
from nova.scheduler import utils, weights as nova_weights
from nova.scheduler.filters import utils as filters_utils
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.problem_log import log_once
from nova_numa_pmc.scheduler import hosts, losses, request, shadow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState
    from nova.weights import WeighedObject

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: What a promise is worth that counts 1 in Nova: it is broken where more than this share of the
#: CPU time that the new guest wants would be lost by keeping it. On nodes of ten cores, a guest
#: loses a quarter at a pressure of about 0.75, and half of it at 1. ``make bench-promises`` shows
#: how often promises are broken.
PROMISE_LOSS = 0.25
_GROUP_WEIGHERS = 'ServerGroupSoftAffinityWeigher', 'ServerGroupSoftAntiAffinityWeigher'
_IMAGE_WEIGHER = 'ImagePropertiesWeigher'
_PROMISE_WEIGHERS = (*_GROUP_WEIGHERS, _IMAGE_WEIGHER, 'PCIWeigher', 'HypervisorVersionWeigher')

scheduler_conf.register_opts(CONF)


class NUMAPressureWeigher(nova_weights.BaseHostWeigher):
    """Lowers each host's weight by what guests would lose there because of the new one."""

    #: Fixed bounds keep Nova from normalising the weights to their range, which would make a small
    #: difference between two hosts count as much as saturation.
    minval, maxval = 0.0, 1.0
    #: Returns the time of the decision [s since the epoch]; replaced when a decision is replayed.
    clock = staticmethod(time.time)

    def __init__(self) -> None:
        self._promise_weighers: list[nova_weights.BaseHostWeigher] | None = None

    def weight_multiplier(self, host_state: HostState) -> float:
        """Return -1: :meth:`weigh_objects` has multiplied, and lower weights are worse."""
        return -1.0

    def weigh_objects(
        self, weighed_obj_list: Sequence[WeighedObject], weight_properties: RequestSpec
    ) -> list[float]:
        """Return what is subtracted from the hosts' weights; never raise: it would fail the boot.

        A penalty that cannot be computed, as with a bad value in the file, is 0 for all hosts.
        """
        try:
            return self._subtracted(weighed_obj_list, weight_properties)
        except Exception as error:
            log_once(
                LOG.exception, 'Hosts are not weighed by their NUMA pressure: %s', repr(error)
            )
            return [0.0] * len(weighed_obj_list)

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        raise NotImplementedError  # weigh_objects() reads the request once for all hosts

    def _subtracted(self, weighed: Sequence[WeighedObject], spec: RequestSpec) -> list[float]:
        """Return what is subtracted from the hosts' weights."""
        conf, realtime_s = CONF.numa_pmc, self.clock()
        host_states = [weighed_host.obj for weighed_host in weighed]
        default_mode = conf.mode  # takes long to read
        modes = [
            _mode(host_state, default_mode) if host_state.aggregates else default_mode
            for host_state in host_states
        ]
        guest_request = request.read(spec)
        why_not_weighed = guest_request.why_not_weighed
        if why_not_weighed or guest_request.guest is None or set(modes) == {scheduler_conf.OFF}:
            LOG.debug('Hosts are not weighed by their NUMA pressure: %s', why_not_weighed or 'off')
            return [0.0] * len(weighed)
        if self._promise_weighers is None:
            self._promise_weighers = _load_promise_weighers()
        default_multiplier = _valid_multiplier(conf.weight_multiplier)
        multipliers = [
            _multiplier(host_state, default_multiplier)
            if host_state.aggregates
            else default_multiplier
            for host_state in host_states
        ]
        known = [hosts.read(host_state, guest_request, realtime_s) for host_state in host_states]
        found = losses.compare(known, guest_request.guest)
        default_floor = conf.penalty_floor
        floors = [
            _floor(host_state, default_floor) if host_state.aggregates else default_floor
            for host_state in host_states
        ]
        penalties = [
            losses.penalty(
                loss,
                floor,
                host_state.nodename,  # all nodes of an ironic nova-compute have the same host
                guest_request.instance_uuid,
            )
            for host_state, loss, floor in zip(host_states, found, floors)
        ]
        # Losses below the floor cost nothing, and so do not outweigh a promise.
        broken = [
            max(0.0, PROMISE_LOSS - floor) * shortfall
            for shortfall, floor in zip(_shortfalls(self._promise_weighers, weighed, spec), floors)
        ]
        subtracted = _weights(
            _counted(multipliers, modes, (scheduler_conf.ON,)), penalties, broken
        )
        if LOG.isEnabledFor(logging.DEBUG):
            _log_penalties(host_states, known, found, penalties, subtracted)
        if scheduler_conf.SHADOW in modes:
            both = scheduler_conf.ON, scheduler_conf.SHADOW
            would_be = _weights(_counted(multipliers, modes, both), penalties, broken)
            shadow_hosts = [
                shadow.ShadowHost(
                    weighed_host.obj.nodename,
                    weighed_host.weight,
                    -would_be_subtracted,
                    -counted,
                    loss,
                    hosts.age_s(weighed_host.obj, realtime_s),
                    host.why_unknown,
                )
                for weighed_host, would_be_subtracted, counted, loss, host in zip(
                    weighed, would_be, subtracted, found, known
                )
            ]
            LOG.info('%s', shadow.line(guest_request, shadow_hosts, realtime_s))
        return subtracted


def _load_promise_weighers() -> list[nova_weights.BaseHostWeigher]:
    """Return those of the configured weighers that keep promises."""
    classes = nova_weights.HostWeightHandler().get_matching_classes(
        CONF.filter_scheduler.weight_classes
    )
    return [
        weigher_class() for weigher_class in classes if weigher_class.__name__ in _PROMISE_WEIGHERS
    ]


def _shortfalls(
    weighers: Sequence[nova_weights.BaseHostWeigher],
    weighed: Sequence[WeighedObject],
    spec: RequestSpec,
) -> list[float]:
    """Return by how much the weight of each host, by these weighers, is below the best host's.

    As in Nova, a weigher counts from 0 for the worst host of the request to its multiplier for the
    best one.

    :param weighers: as from :func:`_load_promise_weighers`
    """
    sums = none = [0.0] * len(weighed)
    for weigher in weighers:
        try:
            if not _may_differ(weigher, spec):
                continue
            # As its weigh_objects() does, which takes four times as long.
            raw = [weigher._weigh_object(host.obj, spec) for host in weighed]
            if not min(raw) < max(raw):
                continue
            normalized = base_weights.normalize(raw, weigher.minval, weigher.maxval)
            added = [
                weigher.weight_multiplier(host.obj) * weight
                for host, weight in zip(weighed, normalized)
            ]
        except Exception as error:  # Nova has called it itself, and decides what follows
            log_once(LOG.warning, '%s is left out: %s', type(weigher).__name__, repr(error))
            continue
        if all(map(math.isfinite, added)):
            sums = [total + weight for total, weight in zip(sums, added)]
    if sums is none:
        return none
    most = max(sums)
    return [most - total for total in sums]


def _may_differ(weigher: nova_weights.BaseHostWeigher, spec: RequestSpec) -> bool:
    """Return whether a weigher may tell hosts apart, if that is known without asking it."""
    name = type(weigher).__name__
    if name in _GROUP_WEIGHERS:
        return spec.instance_group is not None
    return name != _IMAGE_WEIGHER or CONF.filter_scheduler.image_props_weight_multiplier != 0.0


def _counted(
    multipliers: Sequence[float], modes: Sequence[str], counted_modes: Sequence[str]
) -> Sequence[float]:
    """Return the hosts' multipliers, 0.0 where the mode is not one of these."""
    if counted_modes[0] == scheduler_conf.ON and modes.count(scheduler_conf.ON) == len(modes):
        return multipliers
    return [
        multiplier if mode in counted_modes else 0.0
        for multiplier, mode in zip(multipliers, modes)
    ]


def _weights(
    multipliers: Sequence[float], penalties: Sequence[float], broken: Sequence[float]
) -> list[float]:
    """Return what is subtracted from the hosts' weights: their penalties and broken promises.

    A host whose multiplier is 0 is exempt. Beside hosts that are not, it would attract all guests,
    so it has the median of what is subtracted from these for their penalties.

    :param broken: what hosts' shortfalls of other weighers' promises are worth, as a penalty
    """
    most = max(multipliers)
    if not most:
        return [0.0] * len(multipliers)
    products = [
        multiplier * penalty_value for multiplier, penalty_value in zip(multipliers, penalties)
    ]
    if 0.0 in multipliers:
        exempt = median(
            product for product, multiplier in zip(products, multipliers) if multiplier
        )
        products = [
            product if multiplier else exempt for product, multiplier in zip(products, multipliers)
        ]
    return [product + most * shortfall for product, shortfall in zip(products, broken)]


def _multiplier(host_state: HostState, default: float) -> float:
    """Return the multiplier that a host's aggregates set; 0 if it is invalid."""
    return _valid_multiplier(
        utils.get_weight_multiplier(host_state, 'numa_pmc_weight_multiplier', default)
    )


def _valid_multiplier(multiplier: float) -> float:
    """Return a multiplier of penalties; 0 in place of one that is negative, NaN or infinite."""
    return multiplier if 0.0 < multiplier < math.inf else 0.0


def _log_penalties(
    host_states: Sequence[HostState],
    known: Sequence[hosts.Host],
    found: Sequence[losses.Loss],
    penalties: Sequence[float],
    subtracted: Sequence[float],
) -> None:
    for host_state, host, loss, penalty, amount in zip(
        host_states, known, found, penalties, subtracted
    ):
        LOG.debug(
            'NUMA pressure of (%s, %s): penalty %.4f, weight -%.2f: %s',
            host_state.host,
            host_state.nodename,
            penalty,
            amount,
            losses.describe(host, loss),
        )


def _mode(host_state: HostState, default: str) -> str:
    """Return the mode of a host; of its aggregates' modes, the most cautious one counts."""
    modes = scheduler_conf.OFF, scheduler_conf.SHADOW, scheduler_conf.ON
    values = filters_utils.aggregate_values_from_key(host_state, 'numa_pmc_mode')
    host_modes = {value.strip().lower() for value in values}
    for unknown in host_modes.difference(modes):
        log_once(
            LOG.warning,
            'numa_pmc_mode of a host aggregate is %s: not on, shadow or off; ignored',
            '%.40r' % unknown,
        )
    return next((mode for mode in modes if mode in host_modes), default)


def _floor(host_state: HostState, default: float) -> float:
    """Return the floor that the host's aggregates set, if any."""
    floor: float = utils.get_weight_multiplier(host_state, 'numa_pmc_penalty_floor', default)
    return max(0.0, floor) if math.isfinite(floor) else default
