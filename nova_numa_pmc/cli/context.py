# SPDX-License-Identifier: Apache-2.0
"""The context of a command: the host that it observes, its guests, promises and measurements."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from nova_numa_pmc.agent import sampling
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.core.rebalance import planner
from nova_numa_pmc.exceptions import NumaPmcError, StateError
from nova_numa_pmc.host import allowed, guests, nova_conf, process, services
from nova_numa_pmc.host.page_moves.move_pages import KERNEL_CALLS, KernelCalls
from nova_numa_pmc.moves import situations
from nova_numa_pmc.placing import decide
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import overrides, promises_file
from nova_numa_pmc.state.promises_file import HostPromises

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import NoReturn

    from nova_numa_pmc import model
    from nova_numa_pmc.core.measurements import Sample
    from nova_numa_pmc.core.rebalance import plan_records

_T = TypeVar('_T')
#: An error about an unknown guest names at most this many others.
_NAMES_SHOWN = 8


class UnknownGuest(NumaPmcError):
    """No running guest matches the one that the operator named."""


def find_guest(
    text: str, running: Collection[model.Guest], problems: Iterable[str] = ()
) -> model.Guest:
    """Return the guest with this name, uuid or libvirt id; a name is preferred, then a uuid.

    :param problems: why other guests could not be read, for the error message
    :raises UnknownGuest: there is none; the message lists similar names
    """
    identifiers: tuple[Callable[[model.Guest], str | None], ...] = (
        lambda guest: guest.name,
        lambda guest: guest.uuid,
        lambda guest: None if guest.id is None else str(guest.id),
    )
    for identifier_of in identifiers:
        for guest in running:
            if text == identifier_of(guest):
                return guest
    names = sorted(guest.name for guest in running)
    similar = difflib.get_close_matches(text, names, _NAMES_SHOWN)
    shown = '%s: %s' % (
        'similar names' if similar else 'guests here',
        ', '.join((similar or names)[:_NAMES_SHOWN]) or 'none',
    )
    raise UnknownGuest('; '.join(('no guest %.80r is running here' % text, shown, *problems)))


class ObservedHost(Record):
    """A host at one moment, or over an interval.

    :param host: the topology; its nodes' ``cpus`` are those of the floating pool
    :param host_promises: the recorded promises, and a promise for each guest that runs without one
    :param guests: the running guests, with the operator's overrides
    :param problems: what could not be read or measured
    :param pool: the floating pool
    :param sample: the measurements, or None if nothing was measured
    :param situation: the rebalancer's input, made from ``sample``; None without one
    """

    host: model.Topology
    host_promises: HostPromises
    guests: tuple[model.Guest, ...]
    problems: tuple[str, ...]
    pool: pools.Pool
    sample: Sample | None = None
    situation: plan_records.Situation | None = None


class CommandContext:
    """Host and options of a command, and the functions with which it waits, asks and writes.

    :ivar host_options: the options that the hook, the agent and the commands share
    :ivar directory: path of the state directory
    :ivar on_terminal: whether stdin and stdout are a terminal, so that an operator can be asked
    :ivar problems: problems with the agent's options; set when :attr:`options` is read
    """

    def __init__(
        self,
        root: str = '/',
        wait: Callable[[float], None] = time.sleep,
        ask: Callable[[str], str] = input,
        block_signals: Callable[
            [], AbstractContextManager[Callable[[float], int | None]]
        ] = process.blocked,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        kernel: KernelCalls = KERNEL_CALLS,
    ) -> None:
        """Read the host's options; this never fails.

        :param wait: waits for the given number of seconds
        :param ask: prints a question and returns the answer, like :func:`input`
        :param block_signals: replaces :func:`process.blocked`
        :param clock_ns: returns CLOCK_MONOTONIC [ns]
        :param kernel: the kernel operations of a move
        """
        self.root = root
        self.ask = ask
        self.block_signals = block_signals
        self.kernel = kernel
        self.wait = wait
        self._clock_ns = clock_ns
        self.host_options = host_options.read_under_root(root)
        self.directory = self.host_options.state_path(root)
        self.on_terminal = all(
            stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)
        )

    @functools.cached_property
    def options(self) -> opts.AgentOptions:
        """Return the agent's options.

        They are read on first use, so that ``pause`` works even if one of them is wrong.

        :raises OptionsError: a value is wrong
        """
        options = opts.read(host_options.path_under_root(self.root, host_options.PATH))
        self.problems = list(options.host_options.problems)
        return options

    def require_root(self) -> None:
        """Check that this process may change the guests of this host.

        :raises NumaPmcError: it may not
        """
        if self.root == '/' and os.geteuid() != 0:
            raise NumaPmcError('this needs root: run the command with sudo')

    def guests(self) -> tuple[tuple[model.Guest, ...], list[str]]:
        """Return (the running guests with the operator's overrides, problems).

        :raises StateError: the operator's overrides cannot be read
        """
        running, problems = guests.read_running(self.root)
        with_overrides, override_problems = overrides.with_overrides(running, self.root)
        return with_overrides, problems + override_problems

    def find(self, name: str) -> model.Guest:
        """Return the running guest with this name, uuid or libvirt id.

        :raises UnknownGuest: there is none
        """
        return find_guest(name, *self.guests())

    def find_overridden(self, name: str) -> tuple[str, str]:
        """Return (uuid, name) of a guest that is running or has an override.

        :param name: name, uuid or libvirt id
        :raises UnknownGuest: there is no such guest
        """
        try:
            guest = self.find(name)
            return guest.uuid, guest.name
        except UnknownGuest:
            for override in overrides.read(self.root)[0].values():
                if name in (override.name, override.uuid):
                    return override.uuid, override.name
            raise

    def read_host(
        self, write_promises: bool = False, pool: pools.Pool | None = None
    ) -> ObservedHost:
        """Read the host, its guests and its promises.

        :param write_promises: record a promise for each guest that runs without one
        :param pool: the floating pool; None: the one that the agent published, or else the one
            that it would determine
        :raises NumaPmcError: something cannot be read
        """
        running, problems = self.guests()
        pool = pool or decide.published_pool(self.root) or self._floating_pool(running)
        host = decide.host_with_pool_cpus(self.root, pool)
        options = self.options.host_options
        problems = [*self.problems, *problems]
        promises = (
            promises_file.locked(options, self.root)
            if write_promises
            else contextlib.nullcontext(read_draft(options, self.root))
        )
        with promises as draft:
            problems += decide.reconcile(draft, host, options, self.root)
        return ObservedHost(host, draft, running, tuple(problems), pool)

    def _floating_pool(self, running: tuple[model.Guest, ...]) -> pools.Pool:
        """Determine the floating pool as the agent would."""
        sets, _ = nova_conf.NovaCpuSetsReader(self.root).read(self._clock_ns())
        return pools.floating_pool(
            allowed.host_with_usable_cpus(self.root), running, sets.shared, sets.dedicated
        )

    def measure(
        self,
        interval_s: float,
        write_promises: bool = False,
        wait: Callable[[float], None] | None = None,
    ) -> ObservedHost:
        """Measure over one interval and return the observed host.

        :param write_promises: as for :meth:`read_host`
        :param wait: waits for the given number of seconds; None: :attr:`wait`
        """
        if sys.stderr.isatty():
            print('measuring for %g s …' % interval_s, file=sys.stderr, flush=True)
        with contextlib.closing(
            sampling.Sampler(self.options.counter_options, self.root)
        ) as sampler:
            sampler.sample(self._clock_ns())
            (wait or self.wait)(interval_s)
            sample = sampler.sample(self._clock_ns())
            observed = self.read_host(write_promises, sampler.pool)
            return observed._replace(
                sample=sample,
                problems=tuple(dict.fromkeys((*observed.problems, *sample.problems))),
                situation=situations.situation(
                    sample,
                    observed.host,
                    observed.host_promises,
                    observed.guests,
                    sampler,
                    self.options.host_options.placement_options,
                    self.root,
                ),
            )

    def propose(
        self, observed: ObservedHost, payback_s: float, names: Collection[str] = ()
    ) -> tuple[plan_records.Plan, plan_records.Situation]:
        """Plan the moves that pay, without widening, which is left to the agent.

        An agent also takes widened guests home.

        :param observed: a host that was measured
        :param payback_s: the time within which a move has to pay [s]
        :param names: names, uuids or libvirt ids of the guests that may be moved; empty: all
        :returns: (the plan, the situation that it was made for)
        :raises UnknownGuest: a named guest is not running
        """
        assert observed.situation is not None
        situation = observed.situation
        if names:
            named_uuids = {find_guest(name, observed.guests).uuid for name in names}
            situation = situation._replace(
                guests=tuple(
                    guest
                    if guest.uuid in named_uuids or guest.why_fixed
                    else guest._replace(why_fixed=eligibility.NOT_NAMED)
                    for guest in situation.guests
                )
            )
        return planner.propose(situation, self._rebalance_options(), payback_s), situation

    def why_not_paying(
        self,
        move: plan_records.Move,
        wait: Callable[[float], None],
        interval_s: float,
        payback_s: float,
    ) -> str:
        """Measure again, and return why a planned move no longer pays; empty if it does.

        :param wait: waits for the given number of seconds
        :param interval_s, payback_s: as for :meth:`measure` and :meth:`propose`
        """
        situation = self.measure(interval_s, write_promises=True, wait=wait).situation
        assert situation is not None
        return planner.why_not_paying(situation, self._rebalance_options(), move, payback_s)

    def _rebalance_options(self) -> plan_records.RebalanceOptions:
        return self.options.rebalance_options._replace(
            widen=False, go_home=services.find(self.root, services.AGENT) is None
        )


def read_draft(options: host_options.HostOptions, root: str) -> HostPromises:
    """Return a copy of the promises to decide with, which needs no lock and is never written.

    It does not wait for a guest's start in progress. If the promises cannot be read, the draft is
    empty and has the reason as its problem.
    """
    try:
        return promises_file.read(options, root)
    except StateError as error:
        return HostPromises(problem=str(error))


def open_sampler(root: str) -> sampling.Sampler:
    """Return a sampler of this host."""
    path = host_options.path_under_root(root, host_options.PATH)
    return sampling.Sampler(opts.read_counters(path), root)


def sample_every(
    take: Callable[[], _T], interval_s: float, wait: Callable[[float], None]
) -> Iterator[_T]:
    """Yield a sample at the end of each interval.

    :param take: returns a sample of the time since the previous call
    :param wait: waits for the given number of seconds
    """
    take()  # the first sample has no rates
    while True:
        wait(interval_s)
        yield take()


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Leave the block without a traceback on SIGINT or SIGTERM; ``finally`` clauses are run."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
