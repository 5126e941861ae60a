# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts by the pressure that the new guest would leave on their nodes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import nova.conf
from nova.scheduler import utils, weights as nova_weights
from nova.scheduler.filters import utils as filters_utils
from oslo_config import cfg
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.scheduler import comparison, penalty, request, shadow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState
    from nova.weights import WeighedObject

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

scheduler_conf.register_opts(CONF)


class NUMAPressureWeigher(nova_weights.BaseHostWeigher):
    """Take a penalty off hosts whose nodes the guest would leave under pressure."""

    #: Bounds that are given keep Nova from stretching what is between them, as the difference of
    #: two hosts alone would else count as much as saturation.
    minval, maxval = 0.0, 1.0
    #: The time of the decision [s since the epoch]; another where one is replayed.
    clock = staticmethod(time.time)

    def weight_multiplier(self, host_state: HostState) -> float:
        """Return the multiplier, per aggregate, below 0 as what it multiplies is a penalty.

        A negative one, NaN or infinity would draw guests to pressed hosts or spoil all weights:
        these count as 0. So does one that can't be read, which weigh_objects() has logged.
        """
        try:
            return -_multiplier(host_state, CONF.numa_pmc.weight_multiplier)
        except cfg.ConfigFileValueError:
            return 0.0

    def weigh_objects(
        self, weighed_obj_list: Sequence[WeighedObject], weight_properties: RequestSpec
    ) -> list[float]:
        """Return the hosts' penalties, 0 to 1; never raise: that would fail the boot."""
        try:
            return _penalties(weighed_obj_list, weight_properties, self.clock())
        except Exception:
            LOG.exception('Hosts are not weighed by their NUMA pressure')
            return [0.0] * len(weighed_obj_list)

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        raise NotImplementedError  # all hosts at once: the request is read once


def _multiplier(host_state: HostState, default: float) -> float:
    """Return the multiplier of a host, with that of its aggregates."""
    value = default
    if host_state.aggregates:
        value = utils.get_weight_multiplier(host_state, 'numa_pmc_weight_multiplier', default)
    return value if math.isfinite(value) and value > 0 else 0.0


def _penalties(weighed: Sequence[WeighedObject], spec: RequestSpec, now_s: float) -> list[float]:
    host_states = [each.obj for each in weighed]
    modes = [_mode(host_state) for host_state in host_states]
    question = request.question(spec)
    if question.neutral or question.asked is None or set(modes) == {scheduler_conf.OFF}:
        LOG.debug('Hosts are not weighed by their NUMA pressure: %s', question.neutral or 'off')
        return [0.0] * len(weighed)
    conf, instance = CONF.numa_pmc, question.instance_uuid
    default = conf.weight_multiplier  # which weight_multiplier() may find to be none, unheard
    rules = request.Rules(conf.stale_after, conf.charge_new_guests)
    terms = penalty.PenaltyTerms(conf.penalty_floor, conf.weight_step, conf.penalty_jitter)
    answers = [_answer(host_state, question, rules, now_s) for host_state in host_states]
    pressures = comparison.pressures(answers, question.asked)
    found = [
        penalty.of_host(host_state, pressure, _terms_of(host_state, terms), instance)
        for host_state, pressure in zip(host_states, pressures)
    ]
    counted = [one if mode == scheduler_conf.ON else 0.0 for one, mode in zip(found, modes)]
    if LOG.isEnabledFor(logging.DEBUG):
        for host_state, answer, one in zip(host_states, answers, found):
            LOG.debug(
                'NUMA pressure of (%s, %s): penalty %.2f: %s',
                host_state.host,
                host_state.nodename,
                one,
                request.describe(answer),
            )
    if scheduler_conf.SHADOW in modes:
        candidates = []
        for each, mode, one, counts, pressure, answer in zip(
            weighed, modes, found, counted, pressures, answers
        ):
            multiplier = -_multiplier(each.obj, default)
            candidates.append(
                shadow.ShadowHost(
                    each.obj.host,
                    each.weight,
                    0.0 if mode == scheduler_conf.OFF else multiplier * one,
                    multiplier * counts,
                    pressure,
                    request.age_s(each.obj, now_s),
                    answer,
                )
            )
        LOG.info('%s', shadow.line(question, candidates, now_s))
    return counted


def _mode(host_state: HostState) -> str:
    """Return whether a host's penalty counts; of several aggregates the most cautious."""
    if host_state.aggregates:
        told = filters_utils.aggregate_values_from_key(host_state, 'numa_pmc_mode')
        for mode in (scheduler_conf.OFF, scheduler_conf.SHADOW, scheduler_conf.ON):
            if mode in told:
                return mode
    mode = CONF.numa_pmc.mode
    return str(mode)


def _terms_of(host_state: HostState, terms: penalty.PenaltyTerms) -> penalty.PenaltyTerms:
    """Return the terms with the floor of the host's aggregates."""
    if not host_state.aggregates:
        return terms
    floor = utils.get_weight_multiplier(host_state, 'numa_pmc_penalty_floor', terms.floor)
    return terms._replace(floor=floor) if math.isfinite(floor) else terms


def _answer(
    host_state: HostState, question: request.Question, rules: request.Rules, now_s: float
) -> request.Answer:
    try:
        return request.answer(host_state, question, rules, now_s)
    except Exception as error:
        return request.Answer(None, f'{error!r:.200}')
