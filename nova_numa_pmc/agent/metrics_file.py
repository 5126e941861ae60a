# SPDX-License-Identifier: Apache-2.0
"""Write each tick to files that node_exporter's textfile collector reads.

The agent runs as root and opens no network socket. Guests are in a file of their own, because not
every operator wants their names, uuids and number of series in the same place as the host's.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.core.finding import install_remedy
from nova_numa_pmc.problem_log import ProblemLog

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.tick import Tick

#: The directory of the files, in the state directory.
DIRECTORY = 'metrics'
#: node_exporter reads only files whose names end in .prom.
HOST_FILE, GUESTS_FILE = 'nova-numa-pmc.prom', 'nova-numa-pmc-guests.prom'


class MetricsFile:
    """Writes ticks if prometheus_client is installed; otherwise, one line of the log says so.

    :param directory: the state directory
    """

    def __init__(self, log: logging.Logger, directory: str) -> None:
        self._directory = os.path.join(directory, DIRECTORY)
        self._problem_log = ProblemLog(log, time.monotonic)
        self._ticks = 0
        self._duration_s = 0.0
        try:
            import prometheus_client  # noqa: F401 -- an extra
        except ImportError as error:
            self._directory = ''
            log.info(
                'no metrics are written: %s; %s, and restart the agent',
                error,
                install_remedy('python3-prometheus-client'),
            )

    def write(self, tick: Tick, duration_s: float) -> None:
        """Replace the files, each in one step; never raise.

        :param duration_s: how long the tick took [s]
        """
        self._ticks += 1
        self._duration_s += duration_s
        if not self._directory:
            return
        with self._problem_log.stage('writing metrics'):
            from nova_numa_pmc.agent import metric_families

            os.makedirs(self._directory, mode=0o755, exist_ok=True)
            for name, families in (
                (HOST_FILE, metric_families.of_host(tick, self._ticks, self._duration_s)),
                (GUESTS_FILE, metric_families.of_guests(tick)),
            ):
                metric_families.write(os.path.join(self._directory, name), families)
