# SPDX-License-Identifier: Apache-2.0
"""Show each tick to Prometheus, where the operator wants it: over HTTP, from a thread.

The loop hands over a finished tick; the thread that serves a scrape formats it. Without
prometheus_client, or where the address is not available, the agent runs without metrics.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.agent.metrics.scrape import Scrape
from nova_numa_pmc.agent.problem_log import ProblemLog
from nova_numa_pmc.conf import metrics as metrics_conf
from nova_numa_pmc.exceptions import ExportError

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.metrics.endpoint import Endpoint
    from nova_numa_pmc.agent.tick import Tick

_STAGE = 'serving metrics'


class Exporter:
    """Serves the last tick where and as the options say.

    It serves nothing before the first one.
    """

    def __init__(
        self, log: logging.Logger, options: metrics_conf.MetricsOptions | None = None
    ) -> None:
        self._log, self._options = log, options or metrics_conf.MetricsOptions()
        self._problem_log = ProblemLog(log, time.monotonic)
        self._endpoint: Endpoint | None = None
        self._installed = True
        self._ticks, self._seconds = 0, 0.0
        self._shown: Scrape  # there before the first scrape

    @property
    def address(self) -> metrics_conf.Address | None:
        """Return the address that is served, None if there is none."""
        return self._endpoint.address if self._endpoint else None

    def show(self, tick: Tick, seconds: float) -> None:
        """Show a tick from now on; nothing is raised, and nothing computed.

        :param seconds: how long it took
        """
        self._ticks, self._seconds = self._ticks + 1, self._seconds + seconds
        self._shown = Scrape(tick, self._options.guests, self._ticks, self._seconds)
        # Again at each tick: an address may come up later than the agent.
        if self._options.address and not self._endpoint and self._installed:
            with self._problem_log.stage(_STAGE):
                self._open(self._options.address)

    def reload(self, options: metrics_conf.MetricsOptions) -> None:
        """Go on with other options; the next tick is shown by them."""
        former, self._options = self._options, options
        self._installed = True  # or so it may be by now
        if options.address != former.address:
            self._problem_log.forget(_STAGE)
            self.close()

    def _open(self, address: metrics_conf.Address) -> None:
        try:
            from nova_numa_pmc.agent.metrics import endpoint
        except ImportError as error:
            self._installed = False  # looking for it at each tick would be costly
            raise ExportError(
                '%s: install prometheus_client (pip install '
                'nova-numa-pmc[metrics]) and reload; the agent goes on without '
                'metrics' % error
            ) from error
        self._endpoint = endpoint.Endpoint(address, lambda: self._shown, self._log)
        self._log.info('metrics are served at %s', self._endpoint.address)

    def close(self) -> None:
        """Stop serving, within half a second; nothing is raised."""
        if self._endpoint:
            endpoint, self._endpoint = self._endpoint, None
            with self._problem_log.stage('stopping metrics'):
                endpoint.close()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
