# SPDX-License-Identifier: Apache-2.0
"""Make what a guest would leave of several hosts comparable.

On which nodes of a host it would go is that host's own affair, as its hook will decide there:
by what is known of this host alone. Hosts are compared with each other by one estimate of the
guest: of its demand by what guests of all of them wanted per vCPU, of its traffic by the median
of theirs. A part of pressure that a host doesn't know is taken as the upper quartile of the
hosts of the request that do (:mod:`nova_numa_pmc.core.missing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.core import missing
from nova_numa_pmc.core.host_view import PRIOR_CORES_PER_VCPU, expected_per_vcpu, expected_traffic
from nova_numa_pmc.core.placement import ranking
from nova_numa_pmc.core.scheduling.aggregates import Aggregates
from nova_numa_pmc.core.scheduling.outcome import Asked, Outcome, expecting
from nova_numa_pmc.scheduler import weights
from nova_numa_pmc.scheduler.request import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova_numa_pmc.core.scheduling.aggregates import Usual

    #: An answer that tells, what the guest would leave, and of what.
    _Known = tuple[Answer, Outcome, Aggregates]
    #: A domain's utilisations: CPU, bandwidth, link; 0.0: unknown.
    _Parts = tuple[float, float, float]
    #: Those of the domains that a guest would use, and of the others.
    _Domains = tuple[list[_Parts], list[_Parts]]


def keys(answers: list[Answer], asked: Asked, step: float) -> list[int | None]:
    """Return each host's :func:`weights.key`, None for one of unknown pressure.

    :param step: of pressure
    """
    return [
        None if found is None else weights.key(found, answer.newcomers, step)
        for answer, found in zip(answers, outcomes(answers, asked))
    ]


def outcomes(answers: list[Answer], asked: Asked) -> list[Outcome | None]:
    """Return the outcomes to compare hosts by; None where a host's pressure is unknown."""
    known: list[_Known] = []
    rates: list[float] = []
    kinds: set[tuple[bool, bool, bool]] = set()
    histories: list[tuple[int, float]] = []
    for answer in answers:  # by position: names cost as much as all else here
        found, host = answer[0], answer[-1]
        if found is not None and host is not None and found[1][0] < ranking.ABSURD:
            known.append((answer, found, host))
            kinds.add(
                (
                    host.demand is not None,
                    host.bandwidth is not None and host.maximum is not None,
                    host.link is not None,
                )
                if host.usual
                else _knows(host)
            )
            rate = host.rate
            if rate is not None:
                rates.append(rate)
            if answer[-2] is not None:
                histories.append(answer[-2])
    rate = sorted(rates)[(len(rates) - 1) // 2] if rates else None
    if histories:
        asked = expecting(asked, expected_per_vcpu(*map(sum, zip(*histories))))
    if len(kinds) > 1:
        return _imputed(answers, known, asked, rate)
    if not any(kind[1] for kind in kinds):
        rate = None  # without maxima traffic makes no pressure
    if rate is None and not histories:
        return [answer[0] for answer in answers]
    traffic = expected_traffic(asked.demand_cores, asked.intensity, rate) or 0
    cores = asked.demand_cores
    estimated = []
    for answer in answers:
        found, host = answer[0], answer[-1]
        if (
            found is not None
            and host is not None
            and found[1][0] < ranking.ABSURD
            and (histories or host.rate != rate)
        ):
            found = _estimated(host, found, asked, cores, traffic)
        estimated.append(found)
    return estimated


def _knows(host: Aggregates) -> tuple[bool, bool, bool]:
    """Return which parts of pressure a host knows of any of its domains: CPU, bandwidth, link."""
    if host.usual:
        return (
            host.demand is not None,
            host.bandwidth is not None and host.maximum is not None,
            host.link is not None,
        )
    return (
        _any(host.demand),
        any(
            bandwidth is not None and maximum
            for bandwidth, maximum in zip(host.bandwidth or (), host.maximum or ())
        ),
        _any(host.link),
    )


def _any(column: Sequence[float | None] | None) -> bool:
    return column is not None and column.count(None) < len(column)


def _estimated(
    host: Aggregates, found: Outcome, asked: Asked, cores: float, traffic: float
) -> Outcome:
    """Return an outcome with another estimate of the guest's demand and traffic.

    :param cores: the demand of ``asked``
    """
    code, _, rest, at, cpus, mems = found
    if host.usual and len(at) == 1:
        (where,) = at
        known: Usual = host  # type: ignore[assignment]  # usual: no None in its columns
        if known.demand and known.bandwidth and known.maximum:  # _of_domain() in short
            pressure = (known.demand[where] + cores) / known.cores[where]
            ratio = (known.bandwidth[where] + traffic) / known.maximum[where]
            pressure = max(pressure, ratio)
            if known.link and known.link[where] > pressure:
                pressure = known.link[where]
        else:
            pressure = max(_of_domain(known, where, cores, traffic))
        return tuple.__new__(Outcome, (code, (pressure,), rest, at, cpus, mems))
    used, _ = _parts(host, asked, found, traffic)
    return found._replace(used=tuple(sorted(map(max, used), reverse=True)))


def _imputed(
    answers: list[Answer], known: list[_Known], asked: Asked, rate: float | None
) -> list[Outcome | None]:
    """Return outcomes with each host's missing parts filled in, all by one traffic."""
    traffic = expected_traffic(asked.demand_cores, asked.intensity, rate) or 0
    parts = {id(answer): _parts(host, asked, found, traffic) for answer, found, host in known}
    knows = {id(answer): _knows(host) for answer, _, host in known}
    quartiles = [
        _quartiles([parts[one] for one in parts if knows[one][part]], part) for part in range(3)
    ]

    def completed(answer: Answer) -> Outcome | None:
        found = answer.outcome
        if found is None or id(answer) not in parts:
            return found
        # Two quartiles of each part: of the domains used and of the others.
        lacking = [quartiles[part] for part in range(3) if not knows[id(answer)][part]]
        used, rest = (
            sorted(
                (max(*each, *(least[at] for least in lacking)) for each in domains), reverse=True
            )
            for at, domains in enumerate(parts[id(answer)])
        )
        return found._replace(used=tuple(used), rest=rest)

    return [completed(answer) for answer in answers]


def _quartiles(parts: list[_Domains], part: int) -> tuple[float, float]:
    """Return the upper quartiles of a part: of the domains used and of the others."""
    used, rest = (
        missing.upper_quartile(values) if values else 0.0
        for values in (
            [max(domain[part] for domain in one[at]) for one in parts if one[at]] for at in (0, 1)
        )
    )
    return used, rest


def _parts(host: Aggregates, asked: Asked, found: Outcome, traffic: float) -> _Domains:
    """Return the utilisations of the domains that a guest would use, and those of the others.

    :returns: (CPU, bandwidth, link) of each, 0.0 for what is unknown
    """
    cores = sum(host.cores[at] for at in found.cpus) or 1.0
    shares = {at: asked.demand_cores * host.cores[at] / cores for at in found.cpus}
    adds = dict.fromkeys(found.mems or found.cpus, traffic / len(found.mems or found.cpus))
    if host.usual:
        known: Usual = host  # type: ignore[assignment]  # usual: no None in its columns

        def of(at: int, cores: float | None, added: float) -> _Parts:
            return _of_domain(known, at, cores, added)
    else:
        nodes, _ = missing.completed(host.view().nodes)

        def of(at: int, cores: float | None, added: float) -> _Parts:
            return ranking.parts(nodes[at], cores, added)

    return (
        [of(at, shares.get(at), adds.get(at, 0)) for at in found.at],
        [of(at, 0, 0) for at in range(len(host.cores)) if at not in found.at],
    )


def _of_domain(host: Usual, at: int, cores: float | None, added: float) -> _Parts:
    """Return a domain's utilisations as :func:`ranking.parts`, of a host that is as usual."""
    cpu = bandwidth = 0.0
    if cores is not None:
        demand = host.demand[at] if host.demand else PRIOR_CORES_PER_VCPU * host.vcpus[at]
        cpu = (demand + cores) / host.cores[at]
    if host.maximum and host.bandwidth:
        bandwidth = (host.bandwidth[at] + added) / host.maximum[at]
    return cpu, bandwidth, host.link[at] if host.link else 0.0
