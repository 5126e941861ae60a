# SPDX-License-Identifier: Apache-2.0
"""Keep the histories of guests' demand across restarts of the agent and of the host.

The file is replaced every few minutes and when the agent ends. Demand that is lost in a crash is
measured again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.core import demand
from nova_numa_pmc.core.demand import Histories
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc import model
    from nova_numa_pmc.agent.agent import Tick
    from nova_numa_pmc.conf.opts import AgentOptions
    from nova_numa_pmc.core.measurements import PoolSample
    from nova_numa_pmc.problem_log import ProblemLog

FILE = 'demand'
#: Measured time between two writes [s].
SAVE_EVERY_S = 300.0
SIZE_MAX_BYTES = 1 << 20


class DemandFile:
    """The histories of this host, and their file.

    :param root: root of the host's file system
    :ivar histories: the histories; None: not read yet
    """

    def __init__(self, root: str, log: logging.Logger, problem_log: ProblemLog) -> None:
        self._root = root
        self._directory = os.path.join(root, state_files.PERSISTENT)
        self._log = log
        self._problem_log = problem_log
        self.histories: Histories | None = None
        self._saved_s = 0.0

    def add_tick(
        self, tick: Tick, options: AgentOptions
    ) -> tuple[dict[int, model.NodeLoad], tuple[PoolSample, ...], model.DemandHistory]:
        """Add a tick's interval and return the host's demand over the longer horizon.

        :param tick: a tick with a sample, the host and its promises
        :returns: ({node id: load}, the demand of the pools other than the floating one, the
            history from which the demand of new guests is estimated)
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        if self.histories is None:
            self.histories = self._load()
            self._saved_s = self.histories.clock_s
        guests = {guest.uuid: guest for guest in tick.guests}
        promises = tick.host_promises.promises
        self.histories.add_sample(tick.sample, guests, promises)
        if self.histories.clock_s >= self._saved_s + SAVE_EVERY_S:
            self.save()
        lasting = demand.LastingDemand(
            self.histories,
            tick.sample,
            tick.host,
            guests,
            promises,
            options.host_options.placement_options,
            tick.now.boottime_ns,
        )
        return lasting.node_loads(), lasting.pool_demands(), self.histories.expectation()

    def save(self) -> None:
        """Replace the file; log one warning when this begins to fail."""
        if self.histories is None:
            return
        with self._problem_log.stage('saving guest demand'):
            self._saved_s = self.histories.clock_s  # a failed write is not retried in every tick
            state_files.write(self._directory, FILE, demand.encode(self.histories))

    def _load(self) -> Histories:
        try:
            return read(self._root) or Histories()
        except StateError as error:
            self._log.warning('%s: guest demand is measured again from scratch', error)
            return Histories()


def read(root: str = '/') -> Histories | None:
    """Return the histories in a host's file, or None if there is no file.

    :raises StateError: the file cannot be used
    """
    directory = os.path.join(root, state_files.PERSISTENT)
    try:
        data = state_files.read(directory, FILE, SIZE_MAX_BYTES)
        return None if data is None else demand.decode(data)
    except ValueError as error:
        raise StateError(
            '%s: %.200s: nova-numa-agent will replace the file within a few minutes'
            % (os.path.join(directory, FILE), error)
        ) from None
