# SPDX-License-Identifier: Apache-2.0
"""Refuse hosts on whose nodes the new guest would leave too much pressure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import nova.conf
from nova.scheduler import filters, utils
from oslo_log import log as logging

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.problem_log import log_once
from nova_numa_pmc.scheduler import hosts, refusals, request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova.objects.request_spec import RequestSpec
    from nova.scheduler.host_manager import HostState

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

scheduler_conf.register_opts(CONF)


class NUMAPressureFilter(filters.BaseHostFilter):
    """Passes hosts that the guest would not load above ``max_pressure``, on one node if required.

    A rebuild passes, because its guest stays on its host and changes nothing that counts here.
    """

    RUN_ON_REBUILD = False

    def filter_all(
        self, filter_obj_list: Iterable[HostState], spec_obj: RequestSpec
    ) -> list[HostState]:
        """Return the hosts that pass; the request is read only once."""
        if utils.request_is_rebuild(spec_obj):
            return list(filter_obj_list)
        return _passing_hosts(list(filter_obj_list), spec_obj)

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether one host passes."""
        return bool(_passing_hosts([host_state], spec_obj))


def _passing_hosts(host_states: list[HostState], spec: RequestSpec) -> list[HostState]:
    """Return the hosts that pass; never raise, as that would fail the boot.

    All hosts pass if an option cannot be read from the file, the environment or an interpolation.
    """
    try:
        guest_request = request.read(spec)
        why_all_pass = guest_request.why_not_weighed or guest_request.why_pinned
        if why_all_pass:
            LOG.debug('Every host passes: %s', why_all_pass)
        for problem in guest_request.flavor_specs.problems:
            log_once(LOG.warning, 'Ignoring an extra spec: %s', problem)
        options = refusals.filter_options(guest_request, CONF.numa_pmc)
        if why_all_pass or not any(options):
            return host_states  # nothing is asked of them, so their metrics need not be read
        realtime_s = time.time()
        return [
            host_state
            for host_state in host_states
            if _passes(host_state, guest_request, options, realtime_s)
        ]
    except Exception as error:
        log_once(LOG.error, 'Every host passes until this is fixed: [numa_pmc] %s', repr(error))
        return host_states


def _passes(
    host_state: HostState,
    guest_request: request.GuestRequest,
    options: refusals.FilterOptions,
    realtime_s: float,
) -> bool:
    host = hosts.read(host_state, guest_request, realtime_s)
    why_refused = refusals.why_refused(host, guest_request, options)
    if why_refused:
        LOG.debug('(%s, %s) fails: %s', host_state.host, host_state.nodename, why_refused)
    return not why_refused
