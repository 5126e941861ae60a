# SPDX-License-Identifier: Apache-2.0
"""The agent: measure, publish, hold guests to their places, and make the moves that pay.

One thread runs a loop of ticks. A tick consists of stages that fail independently of each other.
On a host of many guests, only some ticks measure; all of them hold guests.
A stage is logged when it begins to fail, and again when it works.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.agent import binding, cache_widening, demand_file, keeper, rebalancer, sampling
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core import eligibility, fleet, host_view, pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import StateError, StateLocked
from nova_numa_pmc.host import files, process
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.moves import executor
from nova_numa_pmc.problem_log import ProblemLog
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import move_lock, overrides, pause, publication, state_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nova_numa_pmc.core.fleet import FleetHost
    from nova_numa_pmc.core.measurements import NodeSample, Sample
    from nova_numa_pmc.state.promises_file import HostPromises
    from nova_numa_pmc.state.publication import Publication

LOG = logging.getLogger(__name__)
#: Name of the file in the state directory that the one agent of a host locks.
_LOCK = 'agent'
#: Time from the first tick to the second, which follows soon because the first has no rates [s].
FIRST_INTERVAL_S = 1.0
#: The least time between two ticks for each guest, and the longest that this may take [s]: changes
#: of guests are only noticed at ticks.
INTERVAL_PER_GUEST_S, INTERVAL_MAX_S = 0.06, 10.0
#: The same of two samples, which are only taken in some ticks of a host of many guests. A guest
#: takes about 0.37 ms of CPU time in a sample (``make bench-sampling``), so 200 guests take 0.3 %
#: of a core at most, and 1,000 take 1.5 %. Counters and threads' times go on in between: a longer
#: interval has the mean of shorter ones.
SAMPLE_PER_GUEST_S, SAMPLE_MAX_S = 0.125, 25.0


class Moment(Record):
    """One moment by three clocks.

    :param monotonic_ns: CLOCK_MONOTONIC, for intervals
    :param boottime_ns: CLOCK_BOOTTIME, which includes suspends, for ages
    :param realtime_s: CLOCK_REALTIME [s since the epoch], for times that other programs read
    """

    monotonic_ns: int
    boottime_ns: int
    realtime_s: float

    @classmethod
    def read(cls) -> Moment:
        """Read the clocks."""
        return cls(time.monotonic_ns(), files.boottime_ns(), time.time())


class Tick(Record):
    """The results of a tick's stages; None: unknown.

    :param host_promises: the promises
    :param guests: the running guests
    :param publication: the publication; None: there is none in this tick
    :param totals: the counts of moves at the end of the tick
    :param failing_count: number of stages that currently fail
    :param paused: since when, and why, the agent has been paused; None: it is not paused
    :param starts_taken_over: number of starts that the agent has finished for the hook
    :param guests_moved: whether guests were moved during the interval of the sample
    :param moving: uuids of the guests that a command is moving
    :param moves_stopped: whether no memory is moved because the last moves did not pay
    :param fleet_host: the host as a plan for the fleet sees it; None: nothing was published
    """

    now: Moment
    sample: Sample | None = None
    host: model.Topology | None = None
    host_promises: HostPromises | None = None
    guests: tuple[model.Guest, ...] = ()
    publication: Publication | None = None
    totals: executor.MoveTotals = executor.MoveTotals()
    failing_count: int = 0
    paused: pause.Paused | None = None
    starts_taken_over: int = 0
    guests_moved: bool = False
    moving: frozenset[str] = frozenset()
    moves_stopped: bool = False
    fleet_host: FleetHost | None = None


@contextlib.contextmanager
def hold_agent_lock(directory: str) -> Iterator[None]:
    """Hold the lock of the host's agent inside the ``with`` block.

    :param directory: path of the state directory
    :raises StateLocked: another agent is running
    :raises StateError: the state directory cannot be trusted or created
    """
    with state_files.StateDirectory(directory) as state_directory, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(state_directory.lock(_LOCK, 0))
        except StateLocked:
            raise StateLocked(
                '%s: locked: another nova-numa-agent is running on this host (see fuser(1))'
                % os.path.join(directory, _LOCK)
            ) from None
        yield


class Agent:
    """The agent of one host.

    :param root: root of the host's file system
    :ivar options: the options
    """

    def __init__(
        self, options: opts.AgentOptions, root: str = '/', kernel: KernelCalls = KERNEL_CALLS
    ) -> None:
        """Open nothing; the first tick opens the counters."""
        self.options = options
        self._root = root
        self._problem_log = ProblemLog(LOG, time.monotonic)
        self._unavailable: tuple[str, ...] = ()
        self._sampler = sampling.Sampler(options.counter_options, root)
        self._keeper = keeper.Keeper(options, root, LOG, self._problem_log)
        self._cache_widening = cache_widening.CacheWidening(options.host_options, root, LOG)
        self._directory = options.host_options.state_path(root)
        self._move_lock = move_lock.AgentMoveLock(self._directory, LOG)
        self._executor = executor.MoveExecutor(
            options, root, LOG, problem_log=self._problem_log, kernel=kernel, turn=self._move_lock
        )
        self._rebalancer = rebalancer.Rebalancer(
            options, self._executor, root, LOG, self._problem_log
        )
        self._demand_file = demand_file.DemandFile(root, LOG, self._problem_log)

    def tick(self, now: Moment | None = None, with_sample: bool = True) -> Tick:
        """Run the stages once; never raise.

        :param now: the moment of the tick; by default, the clocks are read
        :param with_sample: whether to measure and publish the host, and plan moves by that;
            otherwise, guests are only kept at their places
        """
        tick = Tick(now or Moment.read(), paused=pause.read(self._root, with_stop=False))
        if tick.paused:
            self._problem_log.log_problems([str(tick.paused) + '; guests are held'])
            self.end_move()
        # Taken first, so that the sample and the promises include the moves of a finished command.
        may_move = self._take_turn()
        tick = self._read_promises(self._measure_and_read(tick, with_sample))
        if tick.sample:
            with self._problem_log.stage('publishing'):
                tick = self._with_publication(tick)
                if tick.publication:
                    publication.write(self._directory, tick.publication)
            with self._problem_log.stage('describing guests for the fleet'):
                tick = tick._replace(fleet_host=self._fleet_host(tick))
        self._keep(tick, may_move)
        if tick.paused or self.options.rebalance == opts.OFF:
            self._problem_log.forget('rebalancing')
        elif may_move and tick.host_promises and tick.sample:
            with self._problem_log.stage('rebalancing'):
                self._rebalancer.plan_and_enqueue(tick, self._sampler, self._demand_file.histories)
        self._release_move_lock()
        return tick._replace(
            totals=self._executor.totals,
            moves_stopped=self._rebalancer.moves_stopped,
            failing_count=self._problem_log.failing_count,
            starts_taken_over=self._keeper.starts_taken_over,
        )

    def _keep(self, tick: Tick, may_move: bool) -> None:
        """Keep the guests at their places, and fetch memory that they had elsewhere.

        :param tick: its promises are replaced where they change
        :param may_move: whether it is the agent's turn, so that no command is moving guests
        """
        host_promises = tick.host_promises
        if tick.host is None or host_promises is None:
            return
        is_free = may_move and not (self._executor.busy or tick.paused)
        if not is_free:
            self._problem_log.forget('widening guests')
        elif tick.sample:
            with self._problem_log.stage('widening guests'):
                self._cache_widening.widen(tick)
        # Read after the promises: a guest that is not in it has the promise that was read.
        if not may_move:
            tick = tick._replace(moving=self._move_lock.guests_of_others())
        with self._problem_log.stage('keeping guests'):
            self._keeper.keep(tick, may_update=not self._executor.busy)
        if is_free:
            with self._problem_log.stage('fetching memory'):
                self._keeper.fetch_again(self._executor.pop_interrupted())
                self._executor.enqueue(self._keeper.plan_fetches(tick), host_promises.promises)
        elif tick.paused:
            self._problem_log.forget('fetching memory')

    def _take_turn(self) -> bool:
        """Take the turn at moving guests, or keep it; return whether guests may be moved."""
        with self._problem_log.stage('moving'):
            self._executor.keep_turn()
        return self._move_lock.try_take()

    def _release_move_lock(self) -> None:
        if not self._executor.busy:
            self._move_lock.release()

    def _measure_and_read(self, tick: Tick, with_sample: bool) -> Tick:
        if with_sample:
            others_moved = self._move_lock.pop_others_moved()
            tick = tick._replace(guests_moved=self._executor.pop_moved() or others_moved)
            if tick.guests_moved:
                self._sampler.forget_memory()
            with self._problem_log.stage('measuring'):
                sample = self._sampler.sample(tick.now.monotonic_ns, tick.now.realtime_s)
                tick = tick._replace(sample=sample)
                self._problem_log.log_problems(sample.problems)
                if sample.unavailable != self._unavailable:
                    self._unavailable = sample.unavailable
                    lacks = '; '.join(sample.unavailable) or 'nothing is missing'
                    LOG.info('not measured on this host: %s', lacks)
        with self._problem_log.stage('reading the host'):
            if tick.sample is None:
                self._problem_log.log_problems(self._sampler.look(tick.now.monotonic_ns))
            self._log_pool(self._executor.pool, self._sampler.pool)
            self._executor.pool = self._sampler.pool
            guests = self._with_overrides(self._sampler.guests)
            tick = tick._replace(host=self._sampler.host, guests=guests)
        return tick

    @staticmethod
    def _log_pool(before: pools.Pool | None, pool: pools.Pool | None) -> None:
        """Log a change of the floating pool's CPUs, to which guests are held."""
        if pool and pool != before and not (before is None and pool.source == pools.KERNEL):
            LOG.info(
                'floating pool: CPUs %s, %s', format_cpulist(pool.cpus), pools.TEXTS[pool.source]
            )

    def _with_overrides(self, running: Iterable[model.Guest]) -> tuple[model.Guest, ...]:
        try:
            guests, problems = overrides.with_overrides(running, self._root)
        except StateError:
            # No guest is held or moved, as that might violate an override, nor is any watched.
            binding.unbind_all(
                self.options.host_options, self._root, LOG, 'the overrides cannot be read'
            )
            raise
        self._problem_log.log_problems(problems)
        return guests

    def _read_promises(self, tick: Tick) -> Tick:
        tick = tick._replace(host_promises=None)
        if tick.host is not None:
            with self._problem_log.stage('updating the promises'):
                host_promises, problems = self._keeper.read_promises(tick)
                tick = tick._replace(host_promises=host_promises)
                self._problem_log.log_problems(problems)
        return tick

    def _with_publication(self, tick: Tick) -> Tick:
        """Return the tick with the host's publication and the loads of its pools, or as it is.

        A first sample is not published, because it has no rates and would replace a better
        publication.
        """
        if not (
            tick.sample
            and tick.sample.nodes
            and tick.sample.elapsed_s
            and tick.host
            and tick.host_promises
        ):
            return tick
        placement_options, sample = self.options.host_options.placement_options, tick.sample
        # The load of the interval, in case the lasting one cannot be computed.
        loads: Mapping[int, model.NodeLoad | NodeSample] = {node.id: node for node in sample.nodes}
        history = model.DemandHistory()
        with self._problem_log.stage('recording guest demand'):
            loads, pool_samples, history = self._demand_file.add_tick(tick, self.options)
            sample = sample._replace(pools=pool_samples)
        view = host_view.view(
            tick.host,
            tick.host_promises.promises.values(),
            placement_options,
            loads,
            tick.host_promises.rotation,
        )
        return tick._replace(
            publication=publication.from_sample(view, sample)._replace(
                history=history,
                uuids=tuple(sorted(tick.host_promises.promises)),
                boot_id=files.read_boot_id(self._root),
                taken_ns=tick.now.boottime_ns,
            )
        )

    def _fleet_host(self, tick: Tick) -> fleet.FleetHost | None:
        """Return the host as a plan for the fleet sees it; None if nothing was published."""
        if tick.publication is None or tick.host_promises is None:
            return None
        promises, recorded = tick.host_promises.promises, self._demand_file.histories
        guests = tuple(
            fleet.of_guest(
                guest,
                eligibility.why_not(eligibility.MOVE, guest, promises.get(guest.uuid), tick.host),
                recorded.guests.get(guest.uuid) if recorded else None,
                tick.now.boottime_ns / 1e9,
            )
            for guest in tick.guests
        )
        return fleet.FleetHost(tick.publication.taken_s, tick.publication.view, guests)

    def step(self) -> float | None:
        """Take the next step of the moves in progress; never raise.

        :returns: seconds after which to call this again; None: no move is in progress
        """
        wait_s = None
        with self._problem_log.stage('moving'):
            wait_s = self._executor.step()
        self._release_move_lock()
        return wait_s

    def end_move(self) -> None:
        """End the move in progress: keep it if most of its memory has moved, else undo it."""
        with self._problem_log.stage('moving'):
            self._executor.end_move()
        self._release_move_lock()

    def close(self) -> None:
        """Save the guests' demand and close files, counters and connections."""
        self._move_lock.release()
        self._demand_file.save()
        self._sampler.close()


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
    :param write_metrics: is called after each tick with a sample, with it and its duration [s]
    :param clock: monotonic clock [s]
    :param notify_manager: notifies systemd, as :func:`process.notify` does
    :param watchdog_s: systemd's watchdog timeout; None: no watchdog
    """
    option_s = agent.options.counter_options.interval_s
    # Half of systemd's timeout, as sd_watchdog_enabled(3) recommends.
    watchdog_interval_s = watchdog_s / 2 if watchdog_s else float('inf')
    ticks, sample_at, due_s = 0, 0, clock()
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
        with_sample = ticks >= sample_at
        tick = agent.tick(with_sample=with_sample)
        ticks += 1
        interval_s = max(option_s, min(INTERVAL_MAX_S, INTERVAL_PER_GUEST_S * len(tick.guests)))
        if with_sample:
            write_metrics(tick, clock() - began_s)
            notify_manager('STATUS=' + status_line(tick.publication, tick.paused))
            if ticks > 1:  # the first sample has no rates, so the next tick has a sample, too
                sample_s = min(SAMPLE_MAX_S, SAMPLE_PER_GUEST_S * len(tick.guests))
                sample_at = ticks + math.ceil(sample_s / interval_s) - 1
        if ticks == 2:
            # Not earlier: units that are ordered after this one may read the publication.
            notify_manager(process.READY)
        due_s = clock() + min(FIRST_INTERVAL_S, interval_s) if ticks == 1 else due_s + interval_s
        if due_s <= clock():  # late, or the host was suspended
            due_s = clock() + interval_s
    notify_manager(process.STOPPING)
    agent.end_move()


def status_line(
    published: publication.Publication | None, paused: pause.Paused | None = None
) -> str:
    """Return the line that ``systemctl status`` shows.

    :param published: the last publication; None: nothing was measured
    :param paused: since when, and why, the agent has been paused; None: it is not paused
    """
    if paused:
        return '%s; %s' % (paused, status_line(published))
    if published is None:
        return 'no measurements: the journal says why'
    guests = sum(node.guests for node in published.view.nodes)
    demand = ', '.join(
        'node %d: %s of %.3g'
        % (
            node.id,
            'unknown' if node.demand_cores is None else '%.2f' % node.demand_cores,
            node.cores,
        )
        for node in published.view.nodes[:8]
    )
    return '%.0f guests; source: %s; cores wanted: %s' % (
        guests,
        published.source or 'none',
        demand,
    )
