# SPDX-License-Identifier: Apache-2.0
"""Run an agent tick by tick, under systemd or by hand, until a signal ends it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nova_numa_pmc.host import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from nova_numa_pmc.agent.agent import Agent
    from nova_numa_pmc.agent.tick import Tick
    from nova_numa_pmc.state.pause import Paused
    from nova_numa_pmc.state.publication import Publication

#: Time from the first tick to the second, which follows soon because the first has no rates [s].
FIRST_INTERVAL_S = 1.0
#: The least time between two ticks for each guest, and the longest that this may take [s]. A guest
#: takes about 0.4 ms of CPU time (``make bench-sampling``), so this bounds the cost to about 0.7 %
#: of a core with 200 guests, and 2 % with 1,000. Rates are over the longer interval, but still
#: whole: counters and threads' times go on.
INTERVAL_PER_GUEST_S, INTERVAL_MAX_S = 0.06, 20.0


def run(
    agent: Agent,
    wait: Callable[[float], int | None],
    write_metrics: Callable[[Tick, float], object],
    clock: Callable[[], float] = time.monotonic,
    notify_manager: Callable[..., object] = process.notify,
    watchdog_s: float | None = None,
) -> None:
    """Tick until a signal arrives, then end the move in progress.

    :param wait: waits for so many seconds, as :func:`process.blocked` yields it; returns the
        signal that arrived, or None
    :param write_metrics: is called after each tick, with it and its duration [s]
    :param clock: monotonic clock [s]
    :param notify_manager: notifies systemd, as :func:`process.notify` does
    :param watchdog_s: systemd's watchdog timeout; None: no watchdog
    """
    option_s = agent.options.counter_options.interval_s
    # Half of systemd's timeout, as sd_watchdog_enabled(3) recommends.
    watchdog_interval_s = watchdog_s / 2 if watchdog_s else float('inf')
    ticks, due_s = 0, clock()
    while True:
        notify_manager(process.WATCHDOG)
        left_s = due_s - clock()
        if left_s > 0:
            step_s = agent.step()
            waits_s = (left_s, watchdog_interval_s, left_s if step_s is None else step_s)
            if wait(min(waits_s)) is not None:
                break
            continue
        began_s = clock()
        tick = agent.tick()
        write_metrics(tick, clock() - began_s)
        notify_manager('STATUS=' + status_line(tick.publication, tick.paused))
        ticks += 1
        interval_s = max(option_s, min(INTERVAL_MAX_S, INTERVAL_PER_GUEST_S * len(tick.guests)))
        if ticks == 2:
            # Not earlier: units that are ordered after this one may read the publication.
            notify_manager(process.READY)
        due_s = clock() + min(FIRST_INTERVAL_S, interval_s) if ticks == 1 else due_s + interval_s
        if due_s <= clock():  # late, or the host was suspended
            due_s = clock() + interval_s
    notify_manager(process.STOPPING)
    agent.end_move()


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
