# SPDX-License-Identifier: Apache-2.0
"""Run an agent tick by tick, under systemd or by hand, until a signal ends it."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import process

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from nova_numa_pmc.agent.agent import Agent
    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.conf.agent import AgentOptions
    from nova_numa_pmc.state.pause import Paused
    from nova_numa_pmc.state.publication import Publication

#: Time from a tick with new counters to the next one, which follows soon because the first has no
#: rates [s].
FIRST_INTERVAL_S = 1.0
#: How long a move in progress may continue when the agent is stopped [s]; after that, it is undone
#: if less than half of its memory has moved. TimeoutStopSec= of the unit (60) leaves room for it.
_STOP_TIMEOUT_S = 10.0


class AgentLoop:
    """Runs the ticks of an agent.

    :param read_options: returns the options after a reload
    :param wait: the :class:`signals.Waiter` that :func:`signals.blocked` yields
    :param clock: monotonic clock [s]
    :param notify_manager: notifies systemd, as :func:`process.notify` does
    :param watchdog_s: systemd's watchdog timeout; None: no watchdog
    :param write_metrics: is called after each tick, with it and its duration [s]
    """

    def __init__(
        self,
        agent: Agent,
        read_options: Callable[[], AgentOptions],
        log: logging.Logger,
        wait: Callable[[float], int | None],
        clock: Callable[[], float] = time.monotonic,
        notify_manager: Callable[..., object] = process.notify,
        watchdog_s: float | None = None,
        write_metrics: Callable[[Tick, float], object] | None = None,
    ) -> None:
        self._agent = agent
        self._read_options = read_options
        self._log = log
        self._wait = wait
        self._clock = clock
        self._notify_manager = notify_manager
        self._write_metrics = write_metrics
        self._due_s = 0.0  # of the next tick, by the clock
        # Half of systemd's timeout, as sd_watchdog_enabled(3) recommends.
        self._watchdog_interval_s = watchdog_s / 2 if watchdog_s else float('inf')

    def run(self) -> None:
        """Tick until SIGTERM or SIGINT, then end the moves in progress."""
        self._first_tick()
        ready = False
        while self._idle():
            self._tick()
            if not ready:
                # Not earlier: units that are ordered after this one may read the publication.
                self._notify_manager(process.READY)
                ready = True
            self._due_s += self._interval_s()
            if self._due_s <= self._clock():  # late, or the host was suspended
                self._due_s = self._clock() + self._interval_s()
        self._notify_manager(process.STOPPING)
        self._finish()

    def _first_tick(self) -> None:
        """Tick with counters that have just been opened."""
        self._tick()
        self._due_s = self._clock() + min(FIRST_INTERVAL_S, self._interval_s())

    def _tick(self) -> None:
        began_s = self._clock()
        tick = self._agent.tick()
        if self._write_metrics:
            self._write_metrics(tick, self._clock() - began_s)
        self._notify_manager('STATUS=' + status_line(tick.publication, tick.paused))

    def _interval_s(self) -> float:
        return self._agent.options.counter_options.interval_s

    def _idle(self) -> bool:
        """Move memory and handle events until the next tick.

        :returns: False if SIGTERM or SIGINT has arrived
        """
        while True:
            self._notify_manager(process.WATCHDOG)
            left_s = self._due_s - self._clock()
            if left_s <= 0:
                return True
            waits_s = (
                self._agent.step(),
                self._agent.handle_events(),
                left_s,
                self._watchdog_interval_s,
            )
            signal_number = self._wait(min(wait_s for wait_s in waits_s if wait_s is not None))
            if signal_number == signal.SIGHUP:
                self._reload()
            elif signal_number:
                return False

    def _reload(self) -> None:
        self._notify_manager('RELOADING=1', 'MONOTONIC_USEC=%d' % (time.monotonic_ns() // 1000))
        try:
            options = self._read_options()
        except NumaPmcError as error:
            self._log.error('options not reloaded; the previous ones stay in effect: %s', error)
        else:
            for problem in options.host_options.problems:
                self._log.warning('%s', problem)
            former_options = self._agent.options
            self._agent.reload(options)
            self._log.info('options reloaded')
            if self._agent.options.counter_options != former_options.counter_options:
                self._first_tick()
        self._notify_manager(process.READY)

    def _finish(self) -> None:
        """Continue the move in progress for a while, then end it."""
        self._agent.stop_beginning_moves()
        end_s = self._clock() + _STOP_TIMEOUT_S
        while self._clock() < end_s:
            self._notify_manager(process.WATCHDOG)
            wait_s = self._agent.step()
            if wait_s is None:
                return
            self._agent.handle_events()  # unread events would otherwise end each wait at once
            if wait_s:
                self._wait(wait_s)
        self._agent.end_move()


def status_line(publication: Publication | None, paused: Paused | None = None) -> str:
    """Return the line that ``systemctl status`` shows.

    :param publication: the last publication; None: nothing was measured
    :param paused: since when, and why, the agent has been paused; None: it is not paused
    """
    if paused:
        return '%s; %s' % (paused, status_line(publication))
    if publication is None:
        return 'no measurements: the journal says why'
    guests = sum(node.guests for node in publication.view.nodes)
    demand = ', '.join(
        'node %d: %s of %.3g'
        % (
            node.id,
            'unknown' if node.demand_cores is None else '%.2f' % node.demand_cores,
            node.cores,
        )
        for node in publication.view.nodes[:8]
    )
    return '%.0f guests; source: %s; cores wanted: %s' % (
        guests,
        publication.source or 'none',
        demand,
    )
