# SPDX-License-Identifier: Apache-2.0
"""Serve the last tick to Prometheus over HTTP from a thread, if the operator wants it.

The loop hands over a finished tick, and the thread that serves a scrape formats it. Without
prometheus_client, or if the address is not available, the agent runs without metrics.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.agent.metrics.scrape import Scrape
from nova_numa_pmc.conf import metrics as metrics_conf
from nova_numa_pmc.exceptions import ExportError
from nova_numa_pmc.problem_log import ProblemLog

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.metrics.endpoint import Endpoint
    from nova_numa_pmc.agent.tick import Tick

_STAGE = 'serving metrics'


class Exporter:
    """Serves the last tick according to the options; nothing is served before the first tick."""

    def __init__(
        self, log: logging.Logger, options: metrics_conf.MetricsOptions | None = None
    ) -> None:
        self._log = log
        self._options = options or metrics_conf.MetricsOptions()
        self._problem_log = ProblemLog(log, time.monotonic)
        self._endpoint: Endpoint | None = None
        self._installed = True
        self._ticks = 0
        self._duration_s = 0.0
        self._scrape: Scrape  # set before the first scrape

    @property
    def address(self) -> metrics_conf.Address | None:
        """Return the address at which metrics are served, or None if there is none."""
        return self._endpoint.address if self._endpoint else None

    def update(self, tick: Tick, duration_s: float) -> None:
        """Serve this tick from now on; never raise, and compute nothing yet.

        :param duration_s: how long the tick took [s]
        """
        self._ticks += 1
        self._duration_s += duration_s
        self._scrape = Scrape(tick, self._options.with_guests, self._ticks, self._duration_s)
        # Tried again in each tick, because an address may come up later than the agent.
        if self._options.address and not self._endpoint and self._installed:
            with self._problem_log.stage(_STAGE):
                self._open(self._options.address)

    def reload(self, options: metrics_conf.MetricsOptions) -> None:
        """Apply new options, from the next tick on."""
        former_options, self._options = self._options, options
        self._installed = True  # prometheus_client may have been installed since
        if options.address != former_options.address:
            self._problem_log.forget(_STAGE)
            self.close()

    def _open(self, address: metrics_conf.Address) -> None:
        try:
            from nova_numa_pmc.agent.metrics import endpoint
        except ImportError as error:
            self._installed = False  # looking for the module in each tick would be expensive
            raise ExportError(
                '%s, so the agent continues without metrics; install prometheus_client '
                '(%s -m pip install nova-numa-pmc[metrics]) and reload' % (error, sys.executable)
            ) from error
        self._endpoint = endpoint.Endpoint(address, lambda: self._scrape, self._log)
        self._log.info('metrics are served at %s', self._endpoint.address)

    def close(self) -> None:
        """Stop serving, within half a second; never raise."""
        if self._endpoint:
            endpoint, self._endpoint = self._endpoint, None
            with self._problem_log.stage('stopping metrics'):
                endpoint.close()
