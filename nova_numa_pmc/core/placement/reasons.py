# SPDX-License-Identifier: Apache-2.0
"""Codes of the reasons of a placement (:class:`model.Reason`), and their text where it is shown.

The libvirt hook imports this module at every guest start, so it imports only light modules.
"""

from __future__ import annotations

from nova_numa_pmc.core import eligibility, missing
from nova_numa_pmc.cpulist import name_nodes
from nova_numa_pmc.model import MIB
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nova_numa_pmc.model import Placement, Reason

#: Kinds of a place for a guest, which are the codes of a placement's first reason: on one node; on
#: a few; on all, as its policy requires; for its CPUs only, because its memory does not fit.
ON_ONE_NODE, ON_SPAN, ON_ALL_NODES, CPUS_ONLY = 'one_node', 'span', 'spread', 'cpus_only'
#: Codes of reasons for which a guest that may be placed is left alone (:mod:`eligibility` has
#: those for which it may not).
TOO_FEW_CPUS, NO_SINGLE_NODE = 'too_few_cpus', 'no_single_node'
#: Codes of remarks on a place.
NO_NODE_FITS, ONE_NODE_WAITS = 'no_node_fits', 'one_node_waits'
BANDWIDTH_DROPPED, MAY_GROW = 'bandwidth_dropped', 'may_grow'
ONE_L3, L3_CROWDED = 'one_l3', 'l3_crowded'
#: {code of a reason: its text for operators, with the names of the reason's values}
TEXTS = {
    ON_ONE_NODE: 'fits on one node',
    ON_SPAN: 'spans the smallest and closest set of nodes that holds it',
    ON_ALL_NODES: 'spread over all nodes, as its policy requires',
    CPUS_ONLY: 'memory does not fit: only CPUs are placed, memory stays unbound',
    **{code: 'left alone: ' + text for code, text in eligibility.TEXTS.items()},
    eligibility.PLACED_BY_OTHERS: 'left alone: placed by others ({by})',
    TOO_FEW_CPUS: 'left alone: {vcpus} vCPUs, but only {cpu_count} CPUs allowed',
    NO_SINGLE_NODE: 'left alone: its policy requires one node, but '
    '{vcpus} vCPUs exceed the {cpu_count} CPUs of the largest node',
    NO_NODE_FITS: 'no single node has room for {vcpus} vCPUs and {memory_bytes}: '
    'at most {cpu_count} CPUs and {unpromised_bytes}',
    ONE_NODE_WAITS: 'one node would hold it, but guests would lose more to waiting for '
    'CPUs and memory there than it loses to the distance',
    ONE_L3: 'on the CPUs of one of its {caches} L3 caches (pressure {pressure})',
    L3_CROWDED: 'on the CPUs of all {caches} L3 caches: one alone would be more crowded '
    '(pressure {pressure})',
    MAY_GROW: 'placed for the {vcpus} vCPUs and {memory_bytes} that it has: '
    'it may grow to {vcpus_max} and {memory_max_bytes}',
    BANDWIDTH_DROPPED: 'bandwidth left out: its maximum is unknown',
    missing.BANDWIDTH_ASSUMED: 'bandwidth unknown on some nodes: '
    'assumed to be the upper quartile of the others',
    missing.CPU_ASSUMED: 'CPU demand unknown on some nodes: '
    'assumed to be the upper quartile of the others',
    missing.LINK_ASSUMED: 'link use unknown on some nodes: '
    'assumed to be the upper quartile of the others',
}


def explain(placement: Placement) -> str:
    """Return one line that states where a guest is placed and why.

    :returns: a line without a newline, such as ``node 1: fits on one node; pressure 0.25 …``
    """
    texts = [_reason_text(reason) for reason in placement.reasons]
    if not placement.cpu_nodes:
        return '; '.join(texts) or 'left alone'
    where = '%s: %s' % (name_nodes(placement.cpu_nodes), '; '.join(texts[:1]))
    return '; '.join([where, *_comparison(dict(placement.reasons[0].values)), *texts[1:]])


def _reason_text(reason: Reason) -> str:
    text = TEXTS.get(reason.code, reason.code)
    for name, value in reason.values:
        text = text.replace('{%s}' % name, _value(name, value))
    return text


def _comparison(values: Mapping[str, Any]) -> list[str]:
    if 'pressure' not in values:
        return []
    texts = ['pressure %.2f' % values['pressure']]
    if 'promised_ratio' in values:
        texts[0] += ', %.0f %% of memory promised' % (100 * values['promised_ratio'])
    if values.get('distance'):
        texts.append('distance %g beyond local' % values['distance'])
    if 'decided_by' in values:
        texts.append(
            'chosen by %s over %s (pressure %.2f)'
            % (values['decided_by'], name_nodes(values['instead_of']), values['instead_pressure'])
        )
    return texts


def _value(name: str, value: Any) -> str:
    """Render a value of a :class:`model.Reason`."""
    if name.endswith('_bytes'):
        return '%.0f MiB' % (value / MIB)
    if isinstance(value, float):
        return '%.2f' % value
    return ', '.join(map(str, value)) if isinstance(value, tuple) else str(value)
