# SPDX-License-Identifier: Apache-2.0
"""Refuse hosts whose nodes the new guest would press too hard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import nova.conf
from nova.scheduler import filters, utils
from oslo_config import cfg
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.scheduler import request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

scheduler_conf.register_opts(CONF)

#: Extra specs that were warned of: once each, as a flavor is asked for again and again.
_WARNED: set[str] = set()
_WARNED_MAX = 1000


class NUMAPressureFilter(filters.BaseHostFilter):
    """Pass the hosts that hold the guest within the pressure ceiling, and on one node if asked.

    A rebuild stays where it is and changes nothing of what is counted here.
    """

    RUN_ON_REBUILD = False

    def filter_all(
        self, filter_obj_list: Iterable[HostState], spec_obj: RequestSpec
    ) -> list[HostState]:
        """Return the hosts that pass; the request is read once for all."""
        judge = None if utils.request_is_rebuild(spec_obj) else _judge(spec_obj)
        if judge is None:
            return list(filter_obj_list)
        return [host_state for host_state in filter_obj_list if judge.passes(host_state)]

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether one host passes."""
        judge = _judge(spec_obj)
        return judge is None or judge.passes(host_state)


def _judge(spec: RequestSpec) -> _Judge | None:
    """Return who judges hosts, None where the options can't be read: then all pass."""
    try:
        return _Judge(spec)
    except cfg.ConfigFileValueError as error:
        LOG.error('Every host passes until this is fixed: [numa_pmc] %s', error)
        return None


class _Judge:
    """A request and the operator's rules for it."""

    def __init__(self, spec: RequestSpec) -> None:
        self.question = request.question(spec)
        self.everything = self.question.neutral or self.question.pinned
        if self.everything:
            LOG.debug('Every host passes: %s', self.everything)
        for problem in self.question.wishes.problems:
            if problem not in _WARNED and len(_WARNED) < _WARNED_MAX:
                _WARNED.add(problem)
                LOG.warning('Ignoring an extra spec: %s', problem)
        self.terms = request.terms(self.question, CONF.numa_pmc)
        self.rules = request.Rules(CONF.numa_pmc.stale_after, CONF.numa_pmc.charge_new_guests)
        self.now_s = time.time()

    def passes(self, host_state: HostState) -> bool:
        """Return whether a host passes."""
        if self.everything:
            return True
        try:
            answer = request.answer(host_state, self.question, self.rules, self.now_s)
        except Exception as error:
            answer = request.Answer(None, f'{error!r:.200}')
        why = request.objection(answer, self.terms)
        if why:
            LOG.debug(
                '(%s, %s) fails: %s: %s',
                host_state.host,
                host_state.nodename,
                why,
                request.describe(answer),
            )
        return not why
