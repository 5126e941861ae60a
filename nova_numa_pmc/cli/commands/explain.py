# SPDX-License-Identifier: Apache-2.0
"""Show where a guest would go and why.

On a compute host, it shows on which nodes a new guest of a given size would be placed
now, or where a running guest was placed and where it would be placed now. Nothing is
recorded or written. On a controller, "whatif" shows which host Nova would choose.

examples:
  nova-numa-rebalance explain --vcpus 4 --memory 8G
  nova-numa-rebalance explain --vcpus 4 --memory 8G --spec numa_pmc:policy=one_node
  nova-numa-rebalance explain --guest instance-0000002a --json

exit codes: 0 there is a place; 1 there is none, or something cannot be read;
64 usage error
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments, context, tables
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import extra_specs, host_view
from nova_numa_pmc.core.placement import candidates, placement, ranking
from nova_numa_pmc.cpulist import format_nodes
from nova_numa_pmc.host import allowed, files, guests
from nova_numa_pmc.json_values import printable, to_json
from nova_numa_pmc.placing import decide
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from typing import Any

    from nova_numa_pmc.placing.decide import Decision

#: Number of places that the text shows; the JSON has all of them.
_PLACES_SHOWN = 12
#: Uuid of a guest that does not exist yet; no libvirt guest has this uuid.
_NEW_UUID = ''
_NEW_NAME = 'new guest'


class PossiblePlace(Record):
    """A place that a guest could be given.

    :param cpu_nodes, mem_nodes: ids of the nodes of its CPUs and of its memory
    :param pressure: the highest pressure that these nodes would have with the guest
    :param key: {part of the sort key: value}; a value is a number, None for an infinite one, or a
        list of numbers for a set of nodes
    """

    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    pressure: float
    key: dict[str, Any]


OPTIONS = (
    *arguments.size(required=False),
    arguments.option(
        '--guest', metavar='GUEST', help='running guest of this host: name, uuid or libvirt id'
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; return the exit code."""
    if not args.guest and not (args.vcpus and args.memory):
        args.parser.error('give --vcpus and --memory of a new guest, or --guest')
    guest = (
        context.find_guest(args.guest, *guests.read_running(args.root))
        if args.guest
        else allowed.with_grants([new_guest(args)], args.root)[0]
    )
    hook_options = host_options.read_under_root(args.root)
    decision, recorded = decide_unrecorded(guest, hook_options, args.root)
    places = possible_places(decision, hook_options.placement_options)
    nodes = decide.host_with_pool_cpus(args.root).nodes
    withheld = host_view.list_withheld(nodes, hook_options.placement_options)
    shown = guest, decision, recorded, places, withheld
    tables.show(args.json, to_data(*shown), to_lines(*shown))
    has_place = decision.promise.cpu_nodes or decision.promise.origin == model.BY_OTHERS
    return arguments.OK if has_place else arguments.PROBLEM


def decide_unrecorded(
    guest: model.Guest, host_options: host_options.HostOptions, root: str
) -> tuple[decide.Decision, model.Promise | None]:
    """Decide where a guest would go if it started now; nothing is recorded or written.

    :param guest: a new guest, or a running one, which is decided on as if it were not there
    :returns: (the decision, the guest's recorded promise or None)
    :raises NumaPmcError: the host cannot be read
    """
    draft = context.read_draft(host_options, root)
    recorded_promise = draft.promises.get(guest.uuid)
    decision = decide.decide_promise(guest, host_options, root, 0, given_draft=draft)
    return decision, recorded_promise


def possible_places(
    decision: decide.Decision, placement_options: model.PlacementOptions
) -> list[PossiblePlace]:
    """Return the possible places, the best first; none if the guest is left alone.

    :param decision: a decision with its view and request, which a recorded one does not have
    """
    assert decision.request is not None and decision.view is not None
    if decision.request.why_alone:
        return []
    inputs = candidates.PlacementInput(decision.view, decision.request)
    return [
        PossiblePlace(
            inputs.node_ids(rank.candidate.cpu_positions),
            inputs.node_ids(rank.candidate.mem_positions),
            rank.pressure,
            {
                field: None if value == math.inf else value
                for field, value in zip(ranking.KEY_FIELDS, rank.key)
            },
        )
        for rank in placement.decide_place(inputs, placement_options).ranks
    ]


def new_guest(args: argparse.Namespace) -> model.Guest:
    """Return the guest that does not exist yet and that the options describe."""
    specs = dict(args.spec)
    our_specs = sorted(
        pair for pair in specs.items() if pair[0].startswith(model.EXTRA_SPEC_PREFIX)
    )
    return model.Guest(
        _NEW_UUID,
        _NEW_NAME,
        args.vcpus,
        args.memory,
        extra_specs=tuple(our_specs),
        placed_by=tuple(extra_specs.pinning_specs(specs)),
    )


def to_data(
    guest: model.Guest,
    decision: Decision,
    recorded: model.Promise | None,
    places: Iterable[PossiblePlace],
    withheld: Sequence[model.Node] = (),
) -> dict[str, Any]:
    """Return the explanation as plain data.

    :param recorded: the guest's recorded promise, or None
    :param withheld: as :func:`host_view.list_withheld` returns it
    """
    assert decision.view is not None
    promise = decision.promise
    return {
        'guest': {
            'name': guest.name,
            'vcpus': guest.vcpus,
            'memory_bytes': guest.memory_bytes,
            'extra_specs': dict(guest.extra_specs),
            'placed_by': list(guest.placed_by),
        },
        'recorded': recorded and to_json(recorded),
        'decision': {
            'origin': promise.origin,
            'cpu_nodes': promise.cpu_nodes,
            'mem_nodes': promise.mem_nodes,
            'why': decision.why,
            'cpus': None if decision.cpus is None else sorted(decision.cpus),
            'evidence': decision.evidence and decision.evidence.summary,
        },
        'problems': list(decision.problems),
        'memory_withheld': [{'node': node.id, 'bytes': node.memory_bytes} for node in withheld],
        'nodes': [
            dict(node._asdict(), cpus=None if node.cpus is None else sorted(node.cpus))
            for node in decision.view.nodes
        ],
        'places': [place._asdict() for place in places],
    }


def to_lines(
    guest: model.Guest,
    decision: Decision,
    recorded: model.Promise | None,
    places: Sequence[PossiblePlace],
    withheld: Sequence[model.Node] = (),
) -> list[str]:
    """Return the explanation as lines of text, from what :func:`to_data` takes."""
    assert decision.view is not None
    lines = [
        '%s, %d vCPUs, %s: %s'
        % (
            printable(guest.name),
            guest.vcpus,
            tables.short_number(guest.memory_bytes, 1024),
            decision.why,
        )
    ]
    if recorded:
        lines.append(
            'recorded: %s, CPUs on %s, memory on %s, %.0f s ago'
            % (
                recorded.origin_text,
                format_nodes(recorded.cpu_nodes) or 'any',
                format_nodes(recorded.mem_nodes) or 'any',
                (files.boottime_ns() - recorded.since_ns) / 1e9,
            )
        )
    lines += tables.problem_lines(decision.problems)
    lines += [tables.memory_line(node.id, node.memory_bytes) for node in withheld]
    return [
        *lines,
        '',
        *tables.to_lines(_node_table(decision.view)),
        '',
        *tables.to_lines(_place_table(places)),
    ]


def _node_table(view: model.HostView) -> tables.Table:
    rows = [
        (
            str(node.id),
            tables.number(node.cores, 1),
            str(node.cpu_count),
            tables.number(node.guests, 1),
            tables.number(node.vcpus, 1),
            tables.short_number(node.capacity_bytes, 1024),
            tables.short_number(node.promised_bytes, 1024),
            tables.short_number(max(0, node.capacity_bytes - node.promised_bytes), 1024),
        )
        for node in view.nodes
    ]
    return tables.Table('node cores cpus guests vcpus capacity promised left'.split(), rows)


def _place_table(places: Sequence[PossiblePlace]) -> tables.Table:
    rows = []
    for number, place in enumerate(places[:_PLACES_SHOWN], 1):
        per_core = place.key['vCPUs per core']
        rows.append(
            (
                '%d.' % number,
                format_nodes(place.cpu_nodes) or 'any',
                format_nodes(place.mem_nodes) or 'any',
                tables.number(place.pressure),
                tables.number(place.key['distance'], 0),
                tables.number(max(per_core) if isinstance(per_core, list) else per_core),
                tables.percent(place.key['promised memory']),
            )
        )
    if len(places) > _PLACES_SHOWN:
        rows.append(('and %d more' % (len(places) - _PLACES_SHOWN),) + ('',) * 6)
    return tables.Table('place CPUs memory pressure distance vcpus/core promised%'.split(), rows)
