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
        request_filter = _RequestFilter(spec)
        return [host_state for host_state in host_states if request_filter.passes(host_state)]
    except Exception as error:
        log_once(LOG.error, 'Every host passes until this is fixed: [numa_pmc] %s', repr(error))
        return host_states


class _RequestFilter:
    """A request, with the options by which hosts are filtered for it."""

    def __init__(self, spec: RequestSpec) -> None:
        self.guest_request = request.read(spec)
        self.why_all_pass = self.guest_request.why_not_weighed or self.guest_request.why_pinned
        if self.why_all_pass:
            LOG.debug('Every host passes: %s', self.why_all_pass)
        for problem in self.guest_request.flavor_specs.problems:
            log_once(LOG.warning, 'Ignoring an extra spec: %s', problem)
        self.filter_options = refusals.filter_options(self.guest_request, CONF.numa_pmc)
        self.realtime_s = time.time()

    def passes(self, host_state: HostState) -> bool:
        """Return whether a host passes; its metrics are read only if something is asked of it."""
        if self.why_all_pass or not any(self.filter_options):
            return True
        host = hosts.read(host_state, self.guest_request, self.realtime_s)
        why_refused = refusals.why_refused(host, self.guest_request, self.filter_options)
        if why_refused:
            LOG.debug('(%s, %s) fails: %s', host_state.host, host_state.nodename, why_refused)
        return not why_refused
