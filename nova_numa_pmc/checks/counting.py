# SPDX-License-Identifier: Apache-2.0
"""Say what a host counts, and find what it does not, for ``status`` and ``check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.conf import counters as counters_conf
from nova_numa_pmc.core import finding, rates
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import publication

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    #: {node id: utilisation; None: unknown}, of nodes with CPUs.
    Ratios = Mapping[int, float | None]

#: Sources that do not count accesses.
_NOT_COUNTING = ('', counters_conf.NUMA_FAULTS, counters_conf.PAGES)
_WHY = '"nova-numa-rebalance events" and "status --interval 1" say what is missing'


def describe(source: str, bandwidth: Ratios, links: Ratios) -> tuple[str, list[Finding]]:
    """Return (what a host counts, what it does not and what to do about it).

    :param source: the best source of the guests' memory accesses; empty: none
    """
    text = 'memory accesses from %s; bandwidth of %s; links of %s' % (
        source or 'nothing',
        _known_nodes(bandwidth),
        _known_nodes(links),
    )
    unknown = [node for node, ratio in bandwidth.items() if ratio is None]
    if source in _NOT_COUNTING and len(unknown) == len(bandwidth):
        return text, [
            Finding(
                'counts-nothing',
                finding.NOTE,
                'this host counts neither memory traffic nor accesses: guests are placed by CPU '
                'time, promises and where their pages are',
                '%s; on a physical host, load its driver of uncore counters (intel_uncore, '
                'amd_uncore) and mount resctrl' % _WHY,
            )
        ]
    findings = []
    if unknown:
        findings.append(
            Finding(
                'bandwidth-unknown',
                finding.NOTE,
                'the bandwidth of %s is left out of the pressure: its traffic or its maximum is '
                'unknown' % name_nodes(unknown),
                '%s; if only the maximum is, set [counters] node_bandwidth_max' % _WHY,
            )
        )
    if source in _NOT_COUNTING:
        findings.append(
            Finding(
                'guests-not-counted',
                finding.NOTE,
                "traffic is counted, but not whose it is: the guests' accesses are inferred from "
                '%s' % (source or 'nothing'),
                '%s; mount resctrl if the CPU has it' % _WHY,
            )
        )
    return text, findings


def _known_nodes(ratios: Ratios) -> str:
    known = [node for node, ratio in ratios.items() if ratio is not None]
    return name_nodes(known) if known else 'no node'


def check_counted(directory: str) -> Iterator[Finding]:
    """Check what the agent's last publication does not include.

    :param directory: the state directory, as this process sees it
    """
    try:
        published = publication.read(directory)
    except StateError:
        return  # check_publication reports this
    nodes = [node for node in published.view.nodes if node.cores]
    yield from describe(
        published.source,
        {
            node.id: rates.ratio(node.bandwidth_bytes_per_sec, node.bandwidth_max_bytes_per_sec)
            for node in nodes
        },
        {node.id: node.link_ratio for node in nodes},
    )[1]
