# SPDX-License-Identifier: Apache-2.0
"""Keep the histories of guests' demand across restarts of the agent and of the host.

The file is replaced every few minutes and when the agent ends. What a crash loses is measured
again.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core.demand import flavors, history_format, lasting_demand
from nova_numa_pmc.core.demand.histories import Histories
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.conf.agent import AgentOptions
    from nova_numa_pmc.sample_records import PoolSample

FILE = 'demand'
#: Measured time between two writes, and the least that is worth a write at the end [s].
SAVE_EVERY_S, SAVE_MIN_S = 300.0, 30.0
_SIZE_MAX_BYTES = 8 << 20


class DemandFile:
    """The histories of this host, and their file.

    :param root: where the host's file systems begin
    :ivar histories: None: not read yet
    """

    def __init__(self, root: str, log: logging.Logger) -> None:
        self._root, self._directory, self._log = (
            root,
            os.path.join(root, state_files.PERSISTENT),
            log,
        )
        self.histories: Histories | None = None
        self._saved_s, self._failing = 0.0, False

    def feed(
        self, tick: Tick, options: AgentOptions
    ) -> tuple[dict[int, model.NodeLoad], tuple[PoolSample, ...]]:
        """Add a tick's interval; return the host's demand over the longer horizon.

        :param tick: with sample, host and promises
        :param options: the file is written where the agent publishes
        :returns: ({node id: load}, demand of the pools other than the floating one)
        """
        assert tick.sample is not None and tick.host is not None and tick.host_promises is not None
        if self.histories is None:
            self.histories = self._load()
            self._saved_s = self.histories.clock_s
        guests, promises = (
            {guest.uuid: guest for guest in tick.guests},
            tick.host_promises.promises,
        )
        self.histories.feed(tick.sample, guests, promises)
        if options.publish and self.histories.clock_s >= self._saved_s + SAVE_EVERY_S:
            self.save()
        longer = lasting_demand.LastingDemand(
            self.histories,
            tick.sample,
            tick.host,
            guests,
            promises,
            options.shared.limits,
            tick.now.boottime_ns,
        )
        return longer.node_loads(), longer.pool_demands()

    def demand_history(self) -> model.DemandHistory:
        """Return the history by which demand of new guests is estimated, as it is published."""
        return flavors.of_all_guests(self.histories) if self.histories else model.DemandHistory()

    def close(self, options: AgentOptions) -> None:
        """Write the histories, unless less than :data:`SAVE_MIN_S` was measured since."""
        if self.histories is None or not options.publish:
            return
        if self.histories.clock_s >= self._saved_s + SAVE_MIN_S:
            self.save(durable=True)

    def save(self, durable: bool = False) -> None:
        """Replace the file; log one warning when this starts to fail.

        :param durable: wait until the disk has it
        """
        assert self.histories is not None
        self._saved_s = self.histories.clock_s  # a write that fails is not retried in each tick
        data = json.dumps(
            history_format.to_data(self.histories), separators=(',', ':'), allow_nan=False
        ).encode()
        try:
            state_files.write(self._directory, FILE, data, durable)
        except StateError as error:
            if not self._failing:
                self._log.warning('guest demand will not survive a restart: %s', error)
            self._failing = True
        else:
            self._failing = False

    def _load(self) -> Histories:
        try:
            return read(self._root) or Histories()
        except StateError as error:
            self._log.warning('%s: guest demand is measured again from scratch', error)
            return Histories()


def read(root: str = '/') -> Histories | None:
    """Return the histories in a host's file, None where none were written.

    :raises StateError: the file cannot be used; names it and the remedy
    """
    directory = os.path.join(root, state_files.PERSISTENT)
    try:
        data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
        return None if data is None else history_format.from_data(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise StateError(
            '%s: %.200s: nova-numa-agent will replace the file within a few minutes'
            % (os.path.join(directory, FILE), error)
        ) from None
