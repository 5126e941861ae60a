# SPDX-License-Identifier: Apache-2.0
"""Try the sources in order until every guest has evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol, TypeVar

    from typing_extensions import ParamSpec

    from nova_numa_pmc.core.evidence import Evidence
    from nova_numa_pmc.host.sources import SourceTick

    _P = ParamSpec('_P')
    _T = TypeVar('_T')
    _T_co = TypeVar('_T_co', covariant=True)

    class Measuring(Protocol[_P, _T_co]):
        """A measurement that may fail."""

        @property
        def name(self) -> str:
            """Return its name."""

        @property
        def problems(self) -> tuple[str, ...]:
            """Return the problems of its last sample."""

        def sample(self, *args: _P.args, **kwargs: _P.kwargs) -> _T_co:
            """Return its measurement.

            :raises NumaPmcError, OSError: it cannot
            """

        def close(self) -> None:
            """Close what is open; it may be sampled again."""

    Source = Measuring[[SourceTick], dict[str, Evidence]]

#: Ticks for which a failed source is skipped: a minute at the default interval.
RETRY_TICKS = 12


class LadderResult(Record):
    """Evidence that the ladder found in one tick.

    :param evidence: {uuid: :class:`Evidence`}; a guest may be absent
    :param problems: problems of the sources above the best one in use, with their remedies
    :param source: name of the best source in use; empty: none
    """

    evidence: dict[str, Evidence]
    problems: tuple[str, ...]
    source: str


class SourceRetries:
    """Skips a failed source for some ticks."""

    def __init__(self, retry_ticks: int = RETRY_TICKS) -> None:
        self._retry_ticks = retry_ticks
        #: {failed measurement: (ticks until it is tried again, why it failed)}.
        self._left: dict[object, tuple[int, str]] = {}

    def sample(
        self,
        measuring: Measuring[_P, _T],
        problems: list[str],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T | None:
        """Return the measurement; None if it failed, and was closed, now or in the last ticks.

        :param problems: the problems so far; those of this measurement are added
        """
        ticks, why = self._left.get(measuring, (0, ''))
        if ticks > 0:
            self._left[measuring] = ticks - 1, why
            problems.append(why)
            return None
        try:
            measured = measuring.sample(*args, **kwargs)
        except (NumaPmcError, OSError) as error:
            why = '%s: %s' % (measuring.name, error)
            self._left[measuring] = self._retry_ticks, why
            problems.append(why)
            measuring.close()
            return None
        self._left.pop(measuring, None)
        problems.extend(measuring.problems)
        return measured


class Ladder:
    """The sources, best first: one that fails is left to the next in the same tick."""

    def __init__(self, sources: Iterable[Source], retry_ticks: int = RETRY_TICKS) -> None:
        self._sources = tuple(sources)
        self._retries = SourceRetries(retry_ticks)

    def sample(self, tick: SourceTick) -> LadderResult:
        """Return the best evidence of each guest; problems of sources are not raised.

        A guest's memory accesses are taken from the first source that has them; its execution
        (cycles, instructions) may come from a source above that one.
        """
        evidence: dict[str, Evidence] = {}
        partial: dict[str, Evidence] = {}
        problems: list[str] = []
        best = ''
        for source in self._sources:
            waiting = tuple(
                running for running in tick.guests if running.guest.uuid not in evidence
            )
            if tick.guests and not waiting:
                break
            sampled = self._retries.sample(source, problems, tick)
            if sampled is None:
                continue
            if not tick.guests:  # still tried, so that it is known whether it works
                best = source.name
                break
            for running in waiting:
                uuid = running.guest.uuid
                given = sampled.get(uuid)
                if given is None:
                    continue
                if given.of_memory:
                    evidence[uuid] = _with_execution(given, partial.get(uuid))
                    best = best or source.name
                else:
                    partial.setdefault(uuid, given)
        return LadderResult({**partial, **evidence}, tuple(problems), best)

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()


def _with_execution(evidence: Evidence, partial: Evidence | None) -> Evidence:
    if partial is None or evidence.cycles_per_sec is not None:
        return evidence
    return evidence._replace(
        cycles_per_sec=partial.cycles_per_sec,
        instructions_per_sec=partial.instructions_per_sec,
        counted_share=partial.counted_share,
        remote_cache_per_sec=partial.remote_cache_per_sec,
        stalled_cycles_per_sec=partial.stalled_cycles_per_sec,
    )
