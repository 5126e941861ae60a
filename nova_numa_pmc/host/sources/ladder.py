# SPDX-License-Identifier: Apache-2.0
"""The ladder of evidence: try the sources in order until every guest has evidence.

A source has ``name``, as in the option ``sources``, ``problems``, ``sample(tick)``, which returns
{uuid: :class:`evidence.Evidence`}, and ``close()`` (:class:`Source`). While it cannot be
used on this host, ``sample()`` raises :class:`SourceUnavailable` with the remedy. A guest without
evidence in a tick is absent from the result, and the next source is tried for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import NumaPmcError, SourceUnavailable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol, TypeVar

    from typing_extensions import ParamSpec

    from nova_numa_pmc.core.build_sample import CpuRates
    from nova_numa_pmc.core.sample_records import Evidence, RunningGuest
    from nova_numa_pmc.model import Topology

    _P = ParamSpec('_P')
    _T = TypeVar('_T')
    _T_co = TypeVar('_T_co', covariant=True)

    class Measurement(Protocol[_P, _T_co]):
        """A measurement that may fail."""

        @property
        def name(self) -> str:
            """Return the name of the measurement."""

        @property
        def problems(self) -> tuple[str, ...]:
            """Return the problems of the last sample."""

        def sample(self, *args: _P.args, **kwargs: _P.kwargs) -> _T_co:
            """Measure, and return the result.

            :raises NumaPmcError, OSError: the measurement failed
            """

        def close(self) -> None:
            """Close what is open; ``sample`` may be called again."""

    Source = Measurement[['SourceTick'], dict[str, Evidence]]


class SourceTick(Record):
    """One reading of a host, as it is given to the sources.

    :param before_ns: CLOCK_MONOTONIC of the previous tick; None in the first
    :param monotonic_ns: CLOCK_MONOTONIC of this tick
    :param busy_cores: {node id: cores for which its CPUs were busy}, at least what guests used
    :param cpu_rates: {node id: rates [lines/s] of all that ran on its CPUs}; empty if nothing was
        counted
    """

    before_ns: int | None
    monotonic_ns: int
    host: Topology
    guests: tuple[RunningGuest, ...]
    busy_cores: dict[int, float]
    cpu_rates: dict[int, CpuRates]

    @property
    def elapsed_ns(self) -> int:
        """Return the time since the previous tick; 0 in the first."""
        return 0 if self.before_ns is None else max(0, self.monotonic_ns - self.before_ns)


#: Ticks for which a failed source is skipped: a minute at the default interval.
RETRY_TICKS = 12


class LadderResult(Record):
    """Evidence that the ladder has gathered in one tick.

    :param evidence: {uuid: :class:`Evidence`}; absent for a guest without any
    :param problems: problems of the sources that were tried, with their remedies
    :param source: name of the best source in use; empty if none is
    :param unavailable: the sources that the host lacks something for, with what it lacks
    """

    evidence: dict[str, Evidence]
    problems: tuple[str, ...]
    source: str
    unavailable: tuple[str, ...] = ()


class MeasurementRetries:
    """Remembers which measurements have failed, and skips each of them for some ticks.

    A host that lacks what a measurement needs has no problem: this is a fact about it.

    :ivar unavailable: {measurement that the host lacks something for: its name, and what}
    """

    def __init__(self) -> None:
        #: {failed measurement: (ticks to skip it for, why it failed)}.
        self._failed: dict[object, tuple[int, str]] = {}
        self.unavailable: dict[object, str] = {}

    def sample(
        self,
        measurement: Measurement[_P, _T],
        problems: list[str],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T | None:
        """Return the result of a measurement; None if it failed, now or in one of the last ticks.

        A measurement that fails is closed.

        :param problems: list that the measurement's problems are added to
        """
        ticks, problem = self._failed.get(measurement, (0, ''))
        if ticks > 0:
            self._failed[measurement] = ticks - 1, problem
            if measurement not in self.unavailable:
                problems.append(problem)
            return None
        self.unavailable.pop(measurement, None)
        try:
            result = measurement.sample(*args, **kwargs)
        except (NumaPmcError, OSError) as error:
            problem = '%s: %s' % (measurement.name, error)
            self._failed[measurement] = RETRY_TICKS, problem
            if isinstance(error, SourceUnavailable):
                self.unavailable[measurement] = problem
            else:
                problems.append(problem)
            measurement.close()
            return None
        self._failed.pop(measurement, None)
        problems.extend(measurement.problems)
        return result


class Ladder:
    """The sources, best first; if one fails, the next is tried in the same tick."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._retries = MeasurementRetries()

    def sample(self, tick: SourceTick) -> LadderResult:
        """Return the best evidence of each guest; problems of sources are returned, not raised.

        A guest's memory accesses are taken from the first source that has them. Its execution
        (cycles, instructions), or its traffic without where that goes, may come from a better
        source.
        """
        evidence: dict[str, Evidence] = {}
        partial: dict[str, Evidence] = {}
        problems: list[str] = []
        best = ''
        for source in self._sources:
            remaining = tuple(
                running for running in tick.guests if running.guest.uuid not in evidence
            )
            if tick.guests and not remaining:
                break
            sampled = self._retries.sample(source, problems, tick)
            if sampled is None:
                continue
            if not tick.guests:  # the source was tried only to learn whether it works
                best = source.name
                break
            for running in remaining:
                uuid = running.guest.uuid
                guest_evidence = sampled.get(uuid)
                if guest_evidence is None:
                    continue
                if guest_evidence.covers_memory:
                    evidence[uuid] = _with_execution(guest_evidence, partial.get(uuid))
                    best = best or source.name
                else:
                    partial.setdefault(uuid, guest_evidence)
        return LadderResult(
            {**partial, **evidence},
            tuple(problems),
            best,
            tuple(self._retries.unavailable.values()),
        )

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()


def _with_execution(evidence: Evidence, partial: Evidence | None) -> Evidence:
    if partial is None or evidence.cycles_per_sec is not None:
        return evidence
    bandwidth = evidence.bandwidth_bytes_per_sec
    return evidence._replace(
        bandwidth_bytes_per_sec=(
            partial.bandwidth_bytes_per_sec if bandwidth is None else bandwidth
        ),
        cycles_per_sec=partial.cycles_per_sec,
        instructions_per_sec=partial.instructions_per_sec,
        counted_ratio=partial.counted_ratio,
        remote_cache_per_sec=partial.remote_cache_per_sec,
        stalled_cycles_per_sec=partial.stalled_cycles_per_sec,
    )
