# SPDX-License-Identifier: Apache-2.0
"""Weigh hosts by the pressure that the new guest would leave on their nodes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import nova.conf
from nova.scheduler import utils, weights as nova_weights
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.scheduler import comparison, request, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState
    from nova.weights import WeighedObject

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

scheduler_conf.register_opts(CONF)


class NUMAPressureWeigher(nova_weights.BaseHostWeigher):
    """Prefer the hosts whose nodes the guest would press least."""

    def weight_multiplier(self, host_state: HostState) -> float:
        """Read the multiplier, per aggregate; NaN or infinity would spoil all hosts' weights."""
        value = utils.get_weight_multiplier(
            host_state, 'numa_pmc_weight_multiplier', CONF.numa_pmc.weight_multiplier
        )
        return value if math.isfinite(value) else 0.0

    def weigh_objects(
        self, weighed_obj_list: Sequence[WeighedObject], weight_properties: RequestSpec
    ) -> list[float]:
        """Return the hosts' weights, finite floats; never raise: that would fail the boot."""
        try:
            return _weigh([weighed.obj for weighed in weighed_obj_list], weight_properties)
        except Exception:
            LOG.exception('Hosts are not weighed by their NUMA pressure')
            return [0.0] * len(weighed_obj_list)

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        raise NotImplementedError  # a host's weight depends on the others


def _weigh(host_states: Sequence[HostState], spec: RequestSpec) -> list[float]:
    question = request.question(spec)
    if question.neutral or question.asked is None:
        LOG.debug('Hosts are not weighed by their NUMA pressure: %s', question.neutral)
        return [0.0] * len(host_states)
    conf = CONF.numa_pmc
    rules = request.Rules(conf.stale_after, conf.charge_new_guests)
    step, now_s = conf.weight_step, time.time()
    answers = [_answer(host_state, question, rules, now_s) for host_state in host_states]
    found = weights.weights(comparison.keys(answers, question.asked, step), conf.unknown_weight)
    if LOG.isEnabledFor(logging.DEBUG):
        for host_state, answer, weight in zip(host_states, answers, found):
            LOG.debug(
                'NUMA pressure of (%s, %s): weight %.4f: %s',
                host_state.host,
                host_state.nodename,
                weight,
                request.describe(answer),
            )
    return found


def _answer(
    host_state: HostState, question: request.Question, rules: request.Rules, now_s: float
) -> request.Answer:
    try:
        return request.answer(host_state, question, rules, now_s)
    except Exception as error:
        return request.Answer(None, f'{error!r:.200}')
