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
from nova_numa_pmc.agent import (
    cache_widening,
    demand_file,
    guest_events,
    promises_reconciler,
    reassertion,
    rebalancer,
    sampling,
    unfinished_starts,
)
from nova_numa_pmc.agent.tick import Moment, Tick
from nova_numa_pmc.conf import agent as agent_conf
from nova_numa_pmc.core import host_view, pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import StateError, StateLocked
from nova_numa_pmc.host import files
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.moves import executor
from nova_numa_pmc.problem_log import ProblemLog
from nova_numa_pmc.state import move_lock, overrides, pause, publication, state_files

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from nova_numa_pmc.core.sample_records import NodeSample
    from nova_numa_pmc.host.libvirt_events import Listener

LOG = logging.getLogger(__name__)
#: Name of the file in the state directory that the one agent of a host locks.
_LOCK = 'agent'


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
    :ivar options: the options in force
    """

    def __init__(
        self,
        options: agent_conf.AgentOptions,
        root: str = '/',
        listener: Listener | None = None,
        kernel: KernelCalls = KERNEL_CALLS,
    ) -> None:
        """Open the sources of guest events only; the first tick opens the counters."""
        self.options = options
        self._root = root
        self._problem_log = ProblemLog(LOG, time.monotonic)
        self._guest_events = guest_events.GuestEvents(root, LOG, listener)
        self._last_tick: Tick | None = None
        self._unavailable: tuple[str, ...] = ()
        self._enqueues_moves = True
        self._sampler = self._open_sampler(options)
        self._promises_reconciler = promises_reconciler.PromisesReconciler(
            options.host_options, root, LOG
        )
        self._reassertion = reassertion.Reassertion(
            options.host_options, root, LOG, self._problem_log
        )
        self._unfinished_starts = unfinished_starts.UnfinishedStarts(
            options.host_options, root, LOG, self._problem_log
        )
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
                host_options=options.host_options._replace(state_dir=state_dir),
                counter_options=options.counter_options._replace(state_dir=state_dir),
            )
        if options.counter_options != self.options.counter_options:
            self._sampler.close()
            self._sampler = self._open_sampler(options)
        if self.options.rebalance == agent_conf.AUTO and options.rebalance != agent_conf.AUTO:
            self.end_move()
        host_options = options.host_options
        self._promises_reconciler.host_options = self._reassertion.host_options = host_options
        self._unfinished_starts.host_options = self._cache_widening.host_options = host_options
        self.options = self._executor.move_promises.options = self._rebalancer.options = options

    def _open_sampler(self, options: agent_conf.AgentOptions) -> sampling.Sampler:
        return sampling.Sampler(
            options.counter_options,
            self._root,
            self._guest_events.guests.read,
            with_promises=False,
        )

    def tick(self, now: Moment | None = None) -> Tick:
        """Run all stages once; never raise.

        :param now: the moment of the tick; by default, the clocks are read
        """
        self._collect_events()
        self._guest_events.pop_names()  # a tick looks at all guests
        tick = Tick(now or Moment.read(), paused=self._pause_watch.refresh())
        if tick.paused:
            self.end_move()
        # Taken first, so that the sample and the promises include the moves of a finished command.
        may_move = self._take_turn()
        tick = self._with_promises(self._measure_and_read(tick))
        with self._problem_log.stage('publishing'):
            tick = self._with_publication(tick)
            if self.options.publish and tick.publication:
                publication.write(self._directory, tick.publication)
        tick = self._record_and_hold(tick, may_move)
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
            starts_taken_over=self._unfinished_starts.starts_taken_over,
        )

    def handle_events(self, now: Moment | None = None) -> float | None:
        """Handle the guests that events have named, as a tick does but without measuring.

        This never raises.

        :param now: the current moment; by default, the clocks are read
        :returns: seconds after which to call this again; None: when a descriptor is readable
        """
        self._collect_events()
        due_in_s, last_tick = self._guest_events.due_in_s(), self._last_tick
        if due_in_s is None or due_in_s > 0 or last_tick is None or last_tick.host is None:
            return due_in_s or None
        names = self._guest_events.pop_names()
        tick = last_tick._replace(now=now or Moment.read(), host_promises=None, guests=())
        with self._problem_log.stage('reading the host'):
            tick = tick._replace(guests=self._with_overrides(self._guest_events.guests.read()[0]))
            may_move = self._take_turn()
            self._last_tick = self._record_and_hold(self._with_promises(tick), may_move, names)
        self._release_move_lock()
        return None

    def _collect_events(self) -> None:
        with self._problem_log.stage('receiving guest events'):
            self._guest_events.collect()

    @property
    def descriptors(self) -> list[int]:
        """Return descriptors that become readable when :meth:`handle_events` has work to do."""
        return self._guest_events.descriptors

    def _record_and_hold(
        self, tick: Tick, may_move: bool, changed_names: Container[str] | None = None
    ) -> Tick:
        """Bring the promises up to date and hold the guests to their places.

        :param may_move: whether it is the agent's turn, so that no command is moving guests
        :param changed_names: names of the guests whose cpusets are read back; None: all
        :returns: the tick with the updated promises
        """
        if tick.host is None or tick.host_promises is None:
            return tick
        self._executor.forget_ended(tick.guests)
        # Read after the promises: a guest that is not in it has the promise that was read.
        moving = frozenset() if may_move else self._move_lock.guests_of_others()
        not_moving = tuple(guest for guest in tick.guests if guest.uuid not in moving)
        if not self._executor.busy:
            with self._problem_log.stage('updating changed guests'):
                tick = tick._replace(
                    host_promises=self._promises_reconciler.update_changed_guests(
                        tick.host_promises,
                        not_moving,
                        tick.host,
                        may_be_wide=self.options.rebalance == agent_conf.AUTO,
                    )
                )
        if self.options.reassert:
            with self._problem_log.stage('finishing starts'):
                tick = self._unfinished_starts.finish(tick, moving)
            if may_move and tick.sample and not (self._executor.busy or tick.paused):
                with self._problem_log.stage('widening guests'):
                    tick = self._cache_widening.widen(tick)
            with self._problem_log.stage('holding guests'):
                self._reassertion.hold(tick, self._covered_nodes(tick), moving, changed_names)
        else:
            self._reassertion.forget_failures()
            self._problem_log.forget('finishing starts', 'widening guests', 'holding guests')
        if tick.paused:
            self._problem_log.forget('widening guests', 'fetching memory')
        may_fetch = may_move and self._enqueues_moves and not (self._executor.busy or tick.paused)
        if may_fetch and tick.host_promises:
            with self._problem_log.stage('fetching memory'):
                self._unfinished_starts.fetch_again(self._executor.pop_interrupted())
                self._executor.enqueue(
                    self._unfinished_starts.plan_fetches(tick, self.options.rebalance_options),
                    tick.host_promises.promises,
                )
        return tick

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
            tick = tick._replace(host=self._sampler.host, events_source=self._guest_events.source)
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
            reassertion.unbind_all(
                self.options.host_options, self._root, LOG, 'the overrides cannot be read'
            )
            raise
        self._problem_log.log_problems(problems)
        return guests

    def _with_promises(self, tick: Tick) -> Tick:
        if tick.host is not None:
            with self._problem_log.stage('updating the promises'):
                host_promises, problems = self._promises_reconciler.read(
                    tick.host, tick.now.boottime_ns
                )
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
        loads: Mapping[int, model.NodeLoad | NodeSample] | None = None
        boottime_ns: int | None = None
        history = model.DemandHistory()
        with self._problem_log.stage('recording guest demand'):
            loads, pool_samples, history = self._demand_file.add_tick(tick, self.options)
            sample = sample._replace(pools=pool_samples)
        if loads is None:
            # The load of the interval itself does not include guests that have just arrived.
            loads = {node.id: node for node in tick.sample.nodes}
            boottime_ns = tick.now.boottime_ns
        view = host_view.view(
            tick.host,
            tick.host_promises.promises.values(),
            placement_options,
            loads,
            tick.host_promises.rotation,
            boottime_ns,
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

    def _covered_nodes(self, tick: Tick) -> set[int] | None:
        """Return the ids of nodes whose memory covers their promises; None: no guest is bound."""
        assert tick.host is not None and tick.host_promises is not None
        if not any(promise.bound for promise in tick.host_promises.promises.values()):
            return None
        view = host_view.view(
            tick.host,
            tick.host_promises.promises.values(),
            self.options.host_options.placement_options,
        )
        return {node.id for node in view.nodes if node.promised_bytes <= node.capacity_bytes}

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
            self._demand_file.close(self.options)
        self._sampler.close()
        self._guest_events.close()
