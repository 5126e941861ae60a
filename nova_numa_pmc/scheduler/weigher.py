# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts by what guests would lose there because of the new one."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import nova.conf
from nova.scheduler import utils, weights as nova_weights
from nova.scheduler.filters import utils as filters_utils
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.scheduler import comparison, host_estimate, penalty, request, shadow
from nova_numa_pmc.scheduler.log_once import log_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState
    from nova.weights import WeighedObject

    from nova_numa_pmc.core.scheduling.added_loss import AddedLoss

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

scheduler_conf.register_opts(CONF)


class NUMAPressureWeigher(nova_weights.BaseHostWeigher):
    """Lowers each host's weight by what guests would lose there because of the new one."""

    #: Fixed bounds keep Nova from normalising the weights to their range, which would make a small
    #: difference between two hosts count as much as saturation.
    minval, maxval = 0.0, 1.0
    #: Returns the time of the decision [s since the epoch]; replaced when a decision is replayed.
    clock = staticmethod(time.time)

    def weight_multiplier(self, host_state: HostState) -> float:
        """Return a host's multiplier, which its aggregates may set, negated for a penalty.

        A negative multiplier, NaN or infinity counts as 0: it would attract guests to where most
        is lost, or spoil all weights. A multiplier that cannot be read also counts as
        0; weigh_objects() has logged the error.
        """
        try:
            return -_multiplier(host_state, CONF.numa_pmc.weight_multiplier)
        except Exception:  # a bad value in the file, the environment, or a reference in either
            return 0.0

    def weigh_objects(
        self, weighed_obj_list: Sequence[WeighedObject], weight_properties: RequestSpec
    ) -> list[float]:
        """Return the hosts' penalties, from 0 to 1; never raise, as that would fail the boot."""
        try:
            return _penalties(weighed_obj_list, weight_properties, self.clock())
        except Exception as error:
            log_once(
                LOG.exception, 'Hosts are not weighed by their NUMA pressure: %s', repr(error)
            )
            return [0.0] * len(weighed_obj_list)

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        raise NotImplementedError  # weigh_objects() reads the request once for all hosts


def _multiplier(host_state: HostState, default: float) -> float:
    """Return the multiplier of a host, which its aggregates may set; 0 if it is invalid."""
    multiplier = default
    if host_state.aggregates:
        multiplier = utils.get_weight_multiplier(host_state, 'numa_pmc_weight_multiplier', default)
    return penalty.valid_multiplier(multiplier)


def _penalties(
    weighed: Sequence[WeighedObject], spec: RequestSpec, realtime_s: float
) -> list[float]:
    """Return the hosts' penalties, 0.0 for a host whose penalty does not count."""
    host_states = [weighed_host.obj for weighed_host in weighed]
    default_mode = CONF.numa_pmc.mode
    modes = [
        _mode(host_state, default_mode) if host_state.aggregates else default_mode
        for host_state in host_states
    ]
    guest_request = request.read(spec)
    why_not_weighed = guest_request.why_not_weighed
    if why_not_weighed or guest_request.guest is None or set(modes) == {scheduler_conf.OFF}:
        LOG.debug('Hosts are not weighed by their NUMA pressure: %s', why_not_weighed or 'off')
        return [0.0] * len(weighed)
    conf = CONF.numa_pmc
    # Read here so that a bad value is logged: weight_multiplier() swallows the error.
    default_multiplier = conf.weight_multiplier
    estimates = host_estimate.estimates(host_states, guest_request, realtime_s)
    losses = comparison.compare(host_states, estimates, guest_request.guest)
    # Jitter would outweigh Nova's weighers for soft server groups.
    jitter = 0.0 if guest_request.is_soft else penalty.JITTER
    options = penalty.PenaltyOptions(conf.penalty_floor, jitter)
    penalties = [
        penalty.penalty(
            loss,
            _with_own_floor(options, host_state) if host_state.aggregates else options,
            host_state.nodename,  # all nodes of an ironic nova-compute have the same host
            guest_request.instance_uuid,
        )
        for host_state, loss in zip(host_states, losses)
    ]
    counted_penalties = [
        value if mode == scheduler_conf.ON else 0.0 for value, mode in zip(penalties, modes)
    ]
    if LOG.isEnabledFor(logging.DEBUG):
        _log_penalties(host_states, estimates, penalties)
    if scheduler_conf.SHADOW in modes:
        rows = zip(weighed, modes, penalties, counted_penalties, losses, estimates)
        shadow_hosts = [_shadow_host(realtime_s, default_multiplier, *row) for row in rows]
        LOG.info('%s', shadow.line(guest_request, shadow_hosts, realtime_s))
    return counted_penalties


def _log_penalties(
    host_states: Sequence[HostState],
    estimates: Sequence[host_estimate.HostEstimate],
    penalties: Sequence[float],
) -> None:
    for host_state, estimate, penalty_value in zip(host_states, estimates, penalties):
        LOG.debug(
            'NUMA pressure of (%s, %s): penalty %.4f: %s',
            host_state.host,
            host_state.nodename,
            penalty_value,
            host_estimate.describe(estimate),
        )


def _shadow_host(
    realtime_s: float,
    default: float,
    weighed: WeighedObject,
    mode: str,
    own_penalty: float,
    counted_penalty: float,
    loss: AddedLoss,
    estimate: host_estimate.HostEstimate,
) -> shadow.ShadowHost:
    host_state = weighed.obj
    multiplier = _multiplier(host_state, default)
    return shadow.ShadowHost(
        host_state.nodename,
        weighed.weight,
        0.0 if mode == scheduler_conf.OFF else -multiplier * own_penalty,
        -multiplier * counted_penalty,
        loss,
        host_estimate.age_s(host_state, realtime_s),
        estimate,
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


def _with_own_floor(
    options: penalty.PenaltyOptions, host_state: HostState
) -> penalty.PenaltyOptions:
    """Return the options with the floor that the host's aggregates set, if any."""
    floor = utils.get_weight_multiplier(host_state, 'numa_pmc_penalty_floor', options.floor)
    return options._replace(floor=max(0.0, floor)) if math.isfinite(floor) else options
