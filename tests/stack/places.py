# SPDX-License-Identifier: Apache-2.0
"""Compute figures about guests' places from what the hosts' kernels report; without I/O."""

import collections

#: At least this fraction of a placed guest's bytes is on its node, or no more than these bytes are
#: on others: the kernel refuses to move some of QEMU's own pages (EACCES).
LOCAL_RATIO_MIN, REFUSED_BYTES = 0.99, 1 << 20


def place(guest, ticks=None):
    """Combine what is known about a guest on its host.

    :param guest: {'bytes': {node: n}, 'cpus': [list of CPUs of each vCPU], 'mems': [nodes]}
    :param ticks: CPU time by node, {'0': n}; None or empty if it is not known
    :returns: dict: node (which has most of its bytes), share (of its bytes there), local (the
        chance that CPU time and a byte meet on a node, or None), bytes, ticks, cpus, mems
    """
    in_all = max(1, sum(guest['bytes'].values()))
    home = max(guest['bytes'], key=lambda node: (guest['bytes'][node], -node))
    ticks = {int(node): spent for node, spent in (ticks or {}).items() if spent}
    ran = sum(ticks.values())
    local = (
        sum(spent / ran * guest['bytes'].get(node, 0) / in_all for node, spent in ticks.items())
        if ran
        else None
    )
    return {
        'node': home,
        'share': round(guest['bytes'][home] / in_all, 4),
        'local': local if local is None else round(local, 4),
        'bytes': guest['bytes'],
        'ticks': ticks,
        'cpus': guest['cpus'],
        'mems': guest['mems'],
    }


def flaws(place, promise, cpus):
    """Return texts about what is wrong with the place of a guest that the hook should place.

    :param promise: the guest's promise on its host, or None
    :param cpus: its node's CPUs, as the kernel lists them
    """
    node, promise = place['node'], promise or {'origin': 'missing', 'cpu_nodes': None}
    requirements = [
        (promise['origin'] == 'placed', f'its promise is {promise["origin"]}'),
        (
            promise['cpu_nodes'] == [node],
            f'it is promised to nodes {promise["cpu_nodes"]}, its bytes are on node {node}',
        ),
        (
            place['share'] >= LOCAL_RATIO_MIN or _away_bytes(place) <= REFUSED_BYTES,
            f'{place["share"]:.1%} of its bytes are on node {node}',
        ),
        (place['cpus'] == [cpus], f'its vCPUs may use {place["cpus"]}, node {node} has {cpus}'),
        (set(place['ticks']) == {node}, f'it ran on nodes {sorted(place["ticks"])}'),
    ]
    return [what for true, what in requirements if not true]


def _away_bytes(place):
    return sum(place['bytes'].values()) - place['bytes'][place['node']]


def spread(places):
    """Count guests: {'cmp1 node 0': n}.

    :param places: {server: place with its host}
    """
    counts = collections.Counter(_node(place_) for place_ in places.values())
    return dict(sorted(counts.items()))


def estimated_remote(places):
    """Return {'cmp1 node 0': mean over its guests of what is not local by bytes and CPU time}."""
    remote_shares = collections.defaultdict(list)
    for place_ in places.values():
        if place_['local'] is not None:
            remote_shares[_node(place_)].append(1 - place_['local'])
    return {
        node: round(sum(shares) / len(shares), 4) for node, shares in sorted(remote_shares.items())
    }


def figures(places):
    """Return a report's entries about the places of some guests, {figure: text}."""
    return {
        'guests on each node': _listed(spread(places)),
        'bytes on the home node': _least_and_mean([p['share'] for p in places.values()]),
        'local, by bytes and CPU time': _least_and_mean(
            [p['local'] for p in places.values() if p['local'] is not None]
        ),
        'remote, by bytes and CPU time': _percents(estimated_remote(places)) or 'not known',
    }


def _node(place_):
    return f'{place_["host"]} node {place_["node"]}'


def _listed(by_node):
    return ', '.join(f'{node}: {value}' for node, value in by_node.items())


def _percents(by_node):
    return _listed({node: f'{ratio:.1%}' for node, ratio in by_node.items()})


def _least_and_mean(values):
    if not values:
        return 'not known'
    return f'{min(values):.1%} at least, {sum(values) / len(values):.1%} on average'
