# SPDX-License-Identifier: Apache-2.0
"""The agent: measure, publish, hold guests to their places, and make the moves that pay.

One thread runs a loop of ticks. A tick consists of stages that fail independently of each other.
A stage is logged when it begins to fail, and again when it works.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.agent import binding, cache_widening, demand_file, keeper, rebalancer, sampling
from nova_numa_pmc.agent.tick import BY_STATUS_FILES, Moment, Tick
from nova_numa_pmc.conf import agent as agent_conf
from nova_numa_pmc.core import host_view, pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import StateError, StateLocked
from nova_numa_pmc.host import files, libvirt_events
from nova_numa_pmc.host.guests import StatusFiles
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.moves import executor
from nova_numa_pmc.problem_log import ProblemLog
from nova_numa_pmc.state import move_lock, overrides, pause, publication, state_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nova_numa_pmc.core.sample_records import NodeSample

LOG = logging.getLogger(__name__)
#: Name of the file in the state directory that the one agent of a host locks.
_LOCK = 'agent'
#: Events that follow the first one within this time are handled together with it [s].
COALESCE_S = 0.2


@contextlib.contextmanager
def hold_agent_lock(directory: str) -> Iterator[None]:
    """Hold the lock of the host's agent inside the ``with`` block.

    :param directory: path of the state directory
    :raises StateLocked: another agent is running
    :raises StateError: the state directory cannot be trusted or created
    """
    with state_files.StateDirectory(directory) as state_directory:
        try:
            lock = state_directory.lock(_LOCK, 0)
        except StateLocked:
            raise StateLocked(
                '%s: locked: another nova-numa-agent is running on this host (see fuser(1))'
                % os.path.join(directory, _LOCK)
            ) from None
        with lock:
            yield


class Agent:
    """The agent of one host.

    :param root: root of the host's file system
    :param listener: a started receiver of libvirt's events; None: only status files are read
    :param clock: monotonic clock for the events [s]
    :ivar options: the options in force
    """

    def __init__(
        self,
        options: agent_conf.AgentOptions,
        root: str = '/',
        listener: libvirt_events.Listener | None = None,
        kernel: KernelCalls = KERNEL_CALLS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the sources of guest events only; the first tick opens the counters."""
        self.options = options
        self._root = root
        self._problem_log = ProblemLog(LOG, time.monotonic)
        self._clock = clock
        self._listener = listener
        self._status_files = StatusFiles(root)
        self._event_s: float | None = None  # when the first unhandled event was received
        self._logged_source = ''
        self._last_tick: Tick | None = None
        self._unavailable: tuple[str, ...] = ()
        self._enqueues_moves = True
        self._sampler = self._open_sampler(options)
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
        self._pause_watch = pause.PauseWatch(root, LOG)
        self._demand_file = demand_file.DemandFile(root, LOG, self._problem_log)

    def reload(self, options: agent_conf.AgentOptions) -> None:
        """Apply new options, and reopen the counters if their options have changed.

        Another state directory is not used, because the agent's lock is in the present one.
        """
        state_dir = self.options.host_options.state_dir
        if options.host_options.state_dir != state_dir:
            LOG.warning('[state] dir: %s stays in use until the agent is restarted', state_dir)
            options = options._replace(
                host_options=options.host_options._replace(state_dir=state_dir)
            )
        if options.counter_options != self.options.counter_options:
            self._sampler.close()
            self._sampler = self._open_sampler(options)
        if self.options.rebalance == agent_conf.AUTO and options.rebalance != agent_conf.AUTO:
            self.end_move()
        self._cache_widening.host_options = options.host_options
        self.options = self._keeper.options = self._rebalancer.options = options
        self._executor.move_promises.options = options

    def _open_sampler(self, options: agent_conf.AgentOptions) -> sampling.Sampler:
        return sampling.Sampler(options.counter_options, self._root, self._status_files.read)

    def tick(self, now: Moment | None = None) -> Tick:
        """Run all stages once; never raise.

        :param now: the moment of the tick; by default, the clocks are read
        """
        self._collect_events()
        self._event_s = None
        tick = Tick(now or Moment.read(), paused=self._pause_watch.refresh())
        if tick.paused:
            self.end_move()
        # Taken first, so that the sample and the promises include the moves of a finished command.
        may_move = self._take_turn()
        tick = self._read_promises(self._measure_and_read(tick))
        with self._problem_log.stage('publishing'):
            tick = self._with_publication(tick)
            if tick.publication:
                publication.write(self._directory, tick.publication)
        self._keep(tick, may_move)
        if tick.paused or self.options.rebalance == agent_conf.OFF:
            self._problem_log.forget('rebalancing')
        elif may_move and tick.host_promises and tick.sample:
            with self._problem_log.stage('rebalancing'):
                self._rebalancer.plan_and_enqueue(tick, self._sampler, self._demand_file.histories)
        self._release_move_lock()
        self._last_tick = tick._replace(sample=None)
        return tick._replace(
            totals=self._executor.totals,
            moves_stopped=self._rebalancer.moves_stopped,
            failing_count=self._problem_log.failing_count,
            starts_taken_over=self._keeper.starts_taken_over,
        )

    def handle_events(self, now: Moment | None = None) -> float | None:
        """Keep the guests after an event, as a tick does but without measuring; never raise.

        :param now: the current moment; by default, the clocks are read
        :returns: seconds after which to call this again; None: when a descriptor is readable
        """
        self._collect_events()
        if self._event_s is None or self._last_tick is None or self._last_tick.host is None:
            return None
        wait_s = self._event_s + COALESCE_S - self._clock()
        if wait_s > 0:
            return wait_s
        self._event_s = None
        with self._problem_log.stage('reading the host'):
            guests = self._with_overrides(self._status_files.read()[0])
            may_move = self._take_turn()
            tick = self._last_tick._replace(now=now or Moment.read(), guests=guests)
            self._keep(self._read_promises(tick), may_move)
        self._release_move_lock()
        return None

    def _collect_events(self) -> None:
        """Collect libvirt's events without waiting; without libvirt, a tick finds the changes."""
        with self._problem_log.stage('receiving guest events'):
            names = self._listener.pop_names() if self._listener else set()
            if names and self._event_s is None:
                self._event_s = self._clock()
            source = self._events_source
            if source != self._logged_source and libvirt_events.CONNECTING not in source:
                self._logged_source = source
                if self._listener:
                    LOG.info('the agent learns of changes to guests from %s', source)

    @property
    def _events_source(self) -> str:
        """Return the source of changes: 'libvirt', or 'status files', with the reason if known."""
        if self._listener is None:
            return BY_STATUS_FILES
        problem = self._listener.problem
        return '%s: %s' % (BY_STATUS_FILES, problem) if problem else 'libvirt'

    @property
    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when :meth:`handle_events` has work to do."""
        return [self._listener.fileno()] if self._listener else []

    def _keep(self, tick: Tick, may_move: bool) -> None:
        """Keep the guests at their places, and fetch memory that they had elsewhere.

        :param tick: its promises are replaced where they change
        :param may_move: whether it is the agent's turn, so that no command is moving guests
        """
        if tick.host is None or tick.host_promises is None:
            return
        self._executor.forget_ended(tick.guests)
        is_free = may_move and not (self._executor.busy or tick.paused)
        if is_free and tick.sample and self.options.reassert:
            with self._problem_log.stage('widening guests'):
                self._cache_widening.widen(tick)
        else:
            self._problem_log.forget('widening guests')
        # Read after the promises: a guest that is not in it has the promise that was read.
        moving = frozenset() if may_move else self._move_lock.guests_of_others()
        with self._problem_log.stage('keeping guests'):
            self._keeper.keep(tick, moving, may_update=not self._executor.busy)
        if is_free and self._enqueues_moves:
            with self._problem_log.stage('fetching memory'):
                self._keeper.fetch_again(self._executor.pop_interrupted())
                self._executor.enqueue(
                    self._keeper.plan_fetches(tick), tick.host_promises.promises
                )
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

    def _measure_and_read(self, tick: Tick) -> Tick:
        others_moved = self._move_lock.pop_others_moved()
        tick = tick._replace(guests_moved=self._executor.pop_moved() or others_moved)
        if tick.guests_moved:
            self._sampler.forget_memory()
        with self._problem_log.stage('measuring'):
            sample = self._sampler.sample(tick.now.monotonic_ns, tick.now.realtime_s)
            tick = tick._replace(sample=sample)
            self._problem_log.log_problems(sample.problems)
            self._log_unavailable(self._unavailable, sample.unavailable)
            self._unavailable = sample.unavailable
        with self._problem_log.stage('reading the host'):
            self._log_pool(self._executor.pool, self._sampler.pool)
            self._executor.pool = self._sampler.pool
            tick = tick._replace(host=self._sampler.host, events_source=self._events_source)
            tick = tick._replace(guests=self._with_overrides(self._sampler.guests))
        return tick

    @staticmethod
    def _log_unavailable(before: tuple[str, ...], unavailable: tuple[str, ...]) -> None:
        """Log a change of what this host lacks, by which nothing is measured."""
        if unavailable != before:
            LOG.info(
                'not measured on this host: %s', '; '.join(unavailable) or 'nothing is missing'
            )

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
                events_source=tick.events_source,
                history=history,
                uuids=tuple(sorted(tick.host_promises.promises)),
                boot_id=files.read_boot_id(self._root),
                taken_ns=tick.now.boottime_ns,
            )
        )

    def step(self) -> float | None:
        """Take the next step of the moves in progress; never raise.

        :returns: seconds after which to call this again; None: no move is in progress
        """
        wait_s = None
        with self._problem_log.stage('moving'):
            wait_s = self._executor.step()
        self._release_move_lock()
        return wait_s

    def stop_beginning_moves(self) -> None:
        """Drop the moves that have not begun, and begin no others, because the agent stops."""
        self._enqueues_moves = False
        self._executor.clear_queue()

    def end_move(self) -> None:
        """End the move in progress: keep it if most of its memory has moved, else undo it."""
        with self._problem_log.stage('moving'):
            self._executor.end_move()
        self._release_move_lock()

    def close(self) -> None:
        """Save the guests' demand and close files, counters and connections."""
        self._move_lock.release()
        with self._problem_log.stage('recording guest demand'):
            self._demand_file.close()
        self._sampler.close()
        if self._listener is not None:
            self._listener.close()
