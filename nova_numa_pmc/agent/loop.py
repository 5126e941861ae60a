# SPDX-License-Identifier: Apache-2.0
"""Run an agent tick by tick, under systemd or by hand, until a signal ends it."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.agent.metrics.exporter import Exporter
from nova_numa_pmc.exceptions import NumaPmcError, StateLocked
from nova_numa_pmc.host import notify
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterator

    from nova_numa_pmc.agent.agent import Agent
    from nova_numa_pmc.conf.agent import AgentOptions
    from nova_numa_pmc.state.pause import Paused
    from nova_numa_pmc.state.publication import Publication

#: The first tick has no rates, so the second follows soon [s].
FIRST_INTERVAL_S = 1.0
#: A file in the state directory whose lock the agent of a host holds.
LOCK = 'agent'
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def only_agent(directory: str) -> Iterator[None]:
    """Hold the lock of the host's agent.

    :raises StateLocked: another agent is running
    :raises StateError: the state directory can't be trusted or made
    """
    fd = state_files.open_directory(directory, create=True)
    try:
        try:
            lock = state_files.take_lock(fd, directory, 0, LOCK)
        except StateLocked:
            raise StateLocked(
                '%s: locked: another nova-numa-agent is running on this host (see fuser(1))'
                % os.path.join(directory, LOCK)
            ) from None
        try:
            yield
        finally:
            os.close(lock)
    finally:
        os.close(fd)


@contextlib.contextmanager
def signals() -> Iterator[Waiter]:
    """Yield a :class:`Waiter`.

    Signals are delivered only while it waits, never between two writes.
    """
    with contextlib.ExitStack() as stack:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, former)
        for signal_number in _SIGNALS:
            stack.callback(
                signal.signal, signal_number, signal.signal(signal_number, lambda *_: None)
            )
        yield stack.enter_context(Waiter())


class Waiter:
    """Waits for time, signals and descriptors.

    Signals are unblocked only during a wait. A signal writes its number to a socket that the wait
    polls, so that one arriving just before the wait ends it, too. For the main thread; all other
    threads have to start with these signals blocked.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._numbers, self._written = socket.socketpair()
        for end in (self._numbers, self._written):
            end.setblocking(False)
        self._came: collections.deque[int] = collections.deque()
        self._selector.register(self._numbers, selectors.EVENT_READ)
        self._former = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)

    def watch(self, *descriptors: int) -> None:
        """Let waits also end when one of these descriptors is readable."""
        for fd in descriptors:
            self._selector.register(fd, selectors.EVENT_READ)

    def __call__(self, seconds: float) -> int | None:
        """Wait this many seconds at most; return the signal that came, or None."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            self._selector.select(0 if self._came else max(0.0, seconds))
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with contextlib.suppress(BlockingIOError):
            self._came.extend(self._numbers.recv(64))
        return self._came.popleft() if self._came else None

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._former)
        for resource in (self._selector, self._numbers, self._written):
            resource.close()


class Service:
    """The loop.

    :param read_options: returns (options after a reload, problems for which defaults are used)
    :param wait: the :class:`Waiter` that :func:`signals` yields
    :param clock: returns seconds that never go back
    :param notify_manager: as :func:`notify.notify`
    :param watchdog_s: systemd's watchdog timeout; None: no watchdog
    :param exporter: serves each tick; None: no metrics are served
    """

    def __init__(
        self,
        agent: Agent,
        read_options: Callable[[], tuple[AgentOptions, list[str]]],
        log: logging.Logger,
        wait: Callable[[float], int | None],
        clock: Callable[[], float] = time.monotonic,
        notify_manager: Callable[..., object] = notify.notify,
        watchdog_s: float | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        self._agent, self._read_options, self._log = agent, read_options, log
        self._wait, self._clock, self._notify_manager = wait, clock, notify_manager
        self._exporter = exporter or Exporter(log)
        # Half of systemd's timeout, as sd_watchdog_enabled(3) recommends.
        self._patience_s = watchdog_s / 2 if watchdog_s else float('inf')

    def run(self) -> None:
        """Tick until SIGTERM or SIGINT, then end the moves in progress."""
        self._tick()
        due_s, ready = self._clock() + min(FIRST_INTERVAL_S, self._interval_s()), False
        while self._idle_until(due_s):
            self._tick()
            if not ready:
                # Only once something is published, as units ordered after this one may read it.
                self._notify_manager(notify.READY)
                ready = True
            due_s += self._interval_s()
            if due_s <= self._clock():  # late, or the host was suspended
                due_s = self._clock() + self._interval_s()
        self._notify_manager(notify.STOPPING)
        self._finish()

    def _tick(self) -> None:
        began_s = self._clock()
        tick = self._agent.tick()
        self._exporter.show(tick, self._clock() - began_s)
        self._notify_manager('STATUS=' + status(tick.publication, tick.paused))

    def _interval_s(self) -> float:
        return self._agent.options.counting.interval_s

    def _idle_until(self, due_s: float) -> bool:
        """Move memory and handle events until the next tick; return False on SIGTERM or SIGINT."""
        while True:
            self._notify_manager(notify.WATCHDOG)
            left_s = due_s - self._clock()
            if left_s <= 0:
                return True
            pauses_s = (self._agent.step(), self._agent.handle_events(), left_s, self._patience_s)
            came = self._wait(min(pause_s for pause_s in pauses_s if pause_s is not None))
            if came == signal.SIGHUP:
                self._reload()
            elif came:
                return False

    def _reload(self) -> None:
        self._notify_manager('RELOADING=1', 'MONOTONIC_USEC=%d' % (time.monotonic_ns() // 1000))
        try:
            options, problems = self._read_options()
        except NumaPmcError as error:
            self._log.error('options not reloaded, the previous ones stay in effect: %s', error)
        else:
            for problem in problems:
                self._log.warning('%s', problem)
            self._agent.reload(options)
            self._exporter.reload(options.metrics)
            self._log.info('options reloaded')
        self._notify_manager(notify.READY)

    def _finish(self) -> None:
        """Continue the move in progress for up to ``stop_timeout_s``, then abandon it."""
        self._agent.clear_queue()
        end_s = self._clock() + self._agent.options.stop_timeout_s
        while self._clock() < end_s:
            self._notify_manager(notify.WATCHDOG)
            pause_s = self._agent.step()
            if pause_s is None:
                return
            self._agent.handle_events()  # unread events would otherwise end each wait at once
            if pause_s:
                self._wait(pause_s)
        self._agent.abandon()


def status(publication: Publication | None, paused: Paused | None = None) -> str:
    """Return the line that ``systemctl status`` shows.

    :param publication: the last one; None: nothing was measured
    :param paused: since when and why the agent is paused; None: it is not
    """
    if paused:
        return '%s; %s' % (paused, status(publication))
    if publication is None:
        return 'nothing measured yet, or nothing to measure: see the journal'
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
