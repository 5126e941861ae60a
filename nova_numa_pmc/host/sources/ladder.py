# SPDX-License-Identifier: Apache-2.0
"""The ladder of evidence: try the sources in order until every guest has evidence.

A source has ``name``, as in the option ``sources``, ``problems``, ``sample(tick)``, which returns
{uuid: :class:`Evidence`}, and ``close()`` (:class:`Source`). While it cannot be used on this host,
``sample()`` raises :class:`SourceUnavailable` with the remedy. A guest without evidence in a tick
is absent from the result, and the next source is tried for it.

The two sources that read nothing themselves are here: :class:`CpuAttribution`, :class:`Pages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import rates
from nova_numa_pmc.core.measurements import (
    ATTRIBUTED,
    INFERRED,
    Evidence,
    attribute_accesses_of_nodes,
)
from nova_numa_pmc.exceptions import NumaPmcError, SourceUnavailable
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Protocol, TypeVar

    from typing_extensions import ParamSpec

    from nova_numa_pmc.core.measurements import RunningGuest
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
    :param evidence_by_node: {node id: evidence of all that ran on its CPUs}; empty if nothing was
        counted
    """

    before_ns: int | None
    monotonic_ns: int
    host: Topology
    guests: tuple[RunningGuest, ...]
    busy_cores: dict[int, float]
    evidence_by_node: dict[int, Evidence]

    @property
    def elapsed_ns(self) -> int:
        """Return the time since the previous tick; 0 in the first."""
        return 0 if self.before_ns is None else max(0, self.monotonic_ns - self.before_ns)


#: Ticks for which a failed source is skipped: a minute at the default interval.
RETRY_TICKS = 12


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


class LadderResult(Record):
    """Evidence that the ladder has gathered in one tick.

    :param evidence: {uuid: :class:`Evidence`}; absent for a guest without any
    :param source: name of the best source in use; empty if none is
    """

    evidence: dict[str, Evidence]
    source: str


class Ladder:
    """The sources, best first; if one fails, the next is tried in the same tick.

    :param retries: skips a source that failed
    """

    def __init__(self, sources: Iterable[Source], retries: MeasurementRetries) -> None:
        self._sources = tuple(sources)
        self._retries = retries

    def sample(self, tick: SourceTick, problems: list[str]) -> LadderResult:
        """Return the best evidence of each guest; problems of sources are returned, not raised.

        A guest's memory accesses are taken from the first source that has them. What that source
        lacks (cycles, instructions, or traffic without where that goes) may come from a better
        one.

        :param problems: list that the sources' problems are added to
        """
        evidence: dict[str, Evidence] = {}
        remaining = {running.guest.uuid for running in tick.guests}
        best = ''
        for source in self._sources:
            if tick.guests and not remaining:
                break
            sampled = self._retries.sample(source, problems, tick)
            if sampled is None:
                continue
            if not tick.guests:  # the source was tried only to learn whether it works
                best = source.name
                break
            for uuid in remaining & sampled.keys():
                found, earlier = sampled[uuid], evidence.get(uuid)
                evidence[uuid] = found.completed_by(earlier) if earlier else found
                if found.covers_memory:
                    remaining.discard(uuid)
                    best = best or source.name
        return LadderResult(evidence, best)

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()


class CpuAttribution:
    """The source ``cpus``.

    A guest's share of a node's accesses is taken to be its share of the node's busy time.
    """

    name = 'cpus'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, as if all that ran on a node accessed memory at the same rate.

        :raises SourceUnavailable: the CPUs are not counted
        """
        if tick.before_ns is None:
            return {}
        counted = [one for one in tick.evidence_by_node.values() if one.local_per_sec is not None]
        if not counted:
            raise SourceUnavailable('the CPUs are not counted')
        ratios = [one.counted_ratio for one in counted if one.counted_ratio is not None]
        counted_ratio = min(ratios, default=None)
        evidence = {}
        for running in tick.guests:
            attributed = attribute_accesses_of_nodes(
                running.cores_by_node, tick.evidence_by_node, tick.busy_cores
            )
            if attributed is not None:
                evidence[running.guest.uuid] = Evidence(
                    self.name, ATTRIBUTED, *attributed, counted_ratio=counted_ratio
                )
        return evidence

    def close(self) -> None:
        """Do nothing, since the counters belong to the sampler."""


class Pages:
    """The source ``pages``, which assumes that a guest accesses all its pages equally often."""

    name = 'pages'
    problems: tuple[str, ...] = ()

    def sample(self, tick: SourceTick) -> dict[str, Evidence]:
        """Return {uuid: evidence}, which has a ratio but no rates."""
        evidence = {}
        for running in tick.guests:
            ratio = remote_ratio_of_pages(running.cores_by_node, running.bytes_by_node)
            if ratio is not None:
                evidence[running.guest.uuid] = Evidence(self.name, INFERRED, remote_ratio=ratio)
        return evidence

    def close(self) -> None:
        """Do nothing, since nothing is open."""


def remote_ratio_of_pages(
    cores_by_node: Mapping[int, float], bytes_by_node: Mapping[int, int]
) -> float | None:
    """Return 1 − Σ_n (cores_n ÷ Σ cores) · (bytes_n ÷ Σ bytes).

    :param cores_by_node, bytes_by_node: {node id: amount}
    :returns: None if the guest did not run or none of its memory is known
    """
    cpu_shares, mem_shares = rates.shares(cores_by_node), rates.shares(bytes_by_node)
    if not cpu_shares or not mem_shares:
        return None
    local = sum(share * mem_shares.get(node, 0.0) for node, share in cpu_shares.items())
    return min(1.0, max(0.0, 1.0 - local))
