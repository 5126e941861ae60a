# SPDX-License-Identifier: Apache-2.0
"""Show where a guest would go and why.

On a compute host, it shows on which nodes a new guest of a given size would be placed
now, or where a running guest was placed and where it would be placed now. Nothing is
recorded or written.

With --hosts, it shows which host the scheduler's filter and weigher would choose. This
takes saved rows of Nova's compute_nodes table and works without Nova. If --nova-conf is
given and Nova can be imported, the weight from each configured weigher is shown too.

examples:
  nova-numa-rebalance explain --vcpus 4 --memory 8G
  nova-numa-rebalance explain --vcpus 4 --memory 8G --spec numa_pmc:policy=one_node
  nova-numa-rebalance explain --guest instance-0000002a --json
  nova-numa-rebalance explain --hosts hosts.json --flavor flavor.json
  nova-numa-rebalance explain --hosts hosts.json --vcpus 4 --memory 8192M --count 3

exit codes: 0 there is a place; 1 there is none, or something cannot be read;
64 usage error
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from nova_numa_pmc import extra_specs, host_cpus, model
from nova_numa_pmc.cli import arguments, dry_run, exits, guest_lookup, output, parse
from nova_numa_pmc.cli.flavor import Flavor
from nova_numa_pmc.cli.render import status, tables
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import node_memory
from nova_numa_pmc.cpulist import format_nodes, is_number
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import domain_values, files, guests
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.state import promises_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from nova_numa_pmc.promises import Decision

_UNITS = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
_MEMORY_MAX_BYTES = 1 << 50
#: The parser of a number of vCPUs.
_vcpus = parse.integer(domain_values.VCPUS_MAX)
#: Maximum number of guests that are placed one after another.
_COUNT_MAX = 1 << 16
#: Number of places that the text shows; the JSON has all of them.
_PLACES_SHOWN = 12
#: Uuid of a guest that does not exist yet; no libvirt guest has this uuid.
_NEW_UUID = ''
_NEW_NAME = 'new guest'


class FlavorError(NumaPmcError):
    """The file of a flavor cannot be used."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    size = parser.add_argument_group('guest')
    size.add_argument('--vcpus', type=_vcpus, metavar='N', help='vCPUs of the guest')
    size.add_argument(
        '--memory',
        type=_memory_bytes,
        metavar='SIZE',
        help='memory of the guest: 8G, 512M; a plain number is MiB, as in a flavor',
    )
    size.add_argument(
        '--spec',
        action='append',
        default=[],
        type=_spec,
        metavar='KEY=VALUE',
        help='extra spec of the flavor (may be repeated)',
    )
    size.add_argument(
        '--flavor',
        metavar='FILE',
        help='file with the flavor, as "openstack flavor show NAME -f json" prints it',
    )
    subject = parser.add_mutually_exclusive_group()
    subject.add_argument(
        '--guest', metavar='GUEST', help='running guest of this host: name, uuid or libvirt id'
    )
    subject.add_argument(
        '--hosts', metavar='FILE', help='file with rows of compute_nodes as JSON: choose a host'
    )
    parser.add_argument(
        '--nova-conf',
        metavar='PATH',
        action='append',
        default=[],
        help="with --hosts: the scheduler's configuration file (default: none, all options at "
        'their defaults)',
    )
    parser.add_argument(
        '--count',
        type=parse.integer(_COUNT_MAX),
        default=1,
        metavar='N',
        help='with --hosts: place this many such guests, one after another',
    )
    arguments.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; return the exit code."""
    if args.hosts:
        from nova_numa_pmc.cli import explain_hosts

        return explain_hosts.run(args, requested_flavor(args))
    guest = (
        guest_lookup.find(args.guest, *guests.read_running(args.root))
        if args.guest
        else new_guest(requested_flavor(args))
    )
    hook_options = host_options.read_under_root(args.root)
    decision, recorded = dry_run.decide_unrecorded(guest, hook_options, args.root)
    places = dry_run.possible_places(decision, hook_options.placement_options)
    nodes = host_cpus.host_with_pool_cpus(args.root).nodes
    withheld = node_memory.list_withheld(nodes, hook_options.placement_options)
    if args.json:
        print(
            json.dumps(
                to_data(guest, decision, recorded, places, withheld), indent=2, sort_keys=True
            )
        )
    else:
        print('\n'.join(to_lines(guest, decision, recorded, places, withheld)))
    has_place = decision.promise.cpu_nodes or decision.promise.origin == model.BY_OTHERS
    return exits.OK if has_place else exits.PROBLEM


def requested_flavor(args: argparse.Namespace) -> Flavor:
    """Return the flavor that the options describe; exit if they do not include its size.

    :raises FlavorError: the flavor's file cannot be used
    """
    flavor = read_flavor(args.flavor) if args.flavor else None
    vcpus = args.vcpus or (flavor and flavor.vcpus)
    memory_bytes = args.memory or (flavor and flavor.memory_bytes)
    if not vcpus or not memory_bytes:
        parser: argparse.ArgumentParser = args.parser
        parser.error(
            'the size of the guest is missing: give --vcpus and --memory, --flavor or --guest'
        )
    return Flavor(vcpus, memory_bytes, {**(flavor.specs if flavor else {}), **dict(args.spec)})


def new_guest(flavor: Flavor) -> model.Guest:
    """Return a guest of this flavor that does not exist yet."""
    our_specs = tuple(
        sorted(
            pair for pair in flavor.specs.items() if pair[0].startswith(model.EXTRA_SPEC_PREFIX)
        )
    )
    return model.Guest(
        _NEW_UUID,
        _NEW_NAME,
        flavor.vcpus,
        flavor.memory_bytes,
        extra_specs=our_specs,
        placed_by=tuple(extra_specs.pinning_specs(flavor.specs)),
    )


def read_flavor(path: str) -> Flavor:
    """Read a flavor from a file that openstackclient printed.

    :raises FlavorError: the file cannot be read or has no such flavor
    """
    try:
        with open(path, encoding='utf-8') as stream:
            flavor = json.loads(stream.read(host_options.SIZE_MAX_BYTES))
        specs = flavor.get('properties') or {}
        if isinstance(specs, str):  # openstackclient before 5.0 printed "a='1', b='2'"
            specs = dict(_spec(part.strip().replace("'", '')) for part in specs.split(','))
        return Flavor(
            _vcpus(str(flavor['vcpus'])),
            _memory_bytes('%sM' % flavor['ram']),
            {str(key): str(value) for key, value in specs.items()},
        )
    except (
        OSError,
        ValueError,
        KeyError,
        AttributeError,
        RecursionError,
        argparse.ArgumentTypeError,
    ) as error:
        raise FlavorError(
            '%s: not a flavor with vcpus, ram and properties (%s): create the file with '
            '"openstack flavor show NAME -f json"' % (path, error)
        ) from None


def to_data(
    guest: model.Guest,
    decision: Decision,
    recorded: model.Promise | None,
    places: Iterable[dry_run.PossiblePlace],
    withheld: Sequence[tuple[model.Node, model.NodeMemory]] = (),
) -> dict[str, Any]:
    """Return the explanation as plain data.

    :param recorded: the guest's recorded promise, or None
    :param withheld: as :func:`node_memory.list_withheld` returns it
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
        'recorded': recorded and promises_format.to_data(recorded),
        'decision': {
            'origin': promise.origin,
            'cpu_nodes': promise.cpu_nodes,
            'mem_nodes': promise.mem_nodes,
            'why': decision.why,
            'cpus': None if decision.cpus is None else sorted(decision.cpus),
            'evidence': decision.evidence and decision.evidence.summary,
        },
        'problems': list(decision.problems),
        'memory_withheld': [
            dict(memory._asdict(), node=node.id, bytes=node.memory_bytes)
            for node, memory in withheld
        ],
        'nodes': [
            dict(node._asdict(), cpus=None if node.cpus is None else sorted(node.cpus))
            for node in decision.view.nodes
        ],
        'places': list(map(_place_data, places)),
    }


def _place_data(place: dry_run.PossiblePlace) -> dict[str, Any]:
    return {
        'cpu_nodes': place.cpu_nodes,
        'mem_nodes': place.mem_nodes,
        'pressure': place.pressure,
        'key': {
            field: None if value == float('inf') else value
            for field, value in place.sort_key.items()
        },
    }


def to_lines(
    guest: model.Guest,
    decision: Decision,
    recorded: model.Promise | None,
    places: Sequence[dry_run.PossiblePlace],
    withheld: Sequence[tuple[model.Node, model.NodeMemory]] = (),
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
    lines += output.problem_lines(decision.problems)
    lines += [status.memory_line(node.id, node.memory_bytes, memory) for node, memory in withheld]
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
    return tables.text_table('node cores cpus guests vcpus capacity promised left', rows)


def _place_table(places: Sequence[dry_run.PossiblePlace]) -> tables.Table:
    rows = [
        (
            '%d.' % number,
            format_nodes(cpu_nodes) or 'any',
            format_nodes(mem_nodes) or 'any',
            tables.number(pressure),
            tables.number(sort_key['distance'], 0),
            _maximum_text(sort_key['vCPUs per core']),
            tables.percent(sort_key['promised memory']),
        )
        for number, (cpu_nodes, mem_nodes, pressure, sort_key) in enumerate(
            places[:_PLACES_SHOWN], 1
        )
    ]
    if len(places) > _PLACES_SHOWN:
        rows.append(('and %d more' % (len(places) - _PLACES_SHOWN),) + ('',) * 6)
    return tables.text_table('place CPUs memory pressure distance vcpus/core promised%', rows)


def _maximum_text(value: float | list[float]) -> str:
    return tables.number(max(value) if isinstance(value, list) else value)


def _memory_bytes(text: str) -> int:
    digits, unit = (text, 'M') if text[-1:].isdigit() else (text[:-1], text[-1:].upper())
    if not (
        is_number(digits, 15)
        and unit in _UNITS
        and 0 < int(digits) * _UNITS[unit] <= _MEMORY_MAX_BYTES
    ):
        raise argparse.ArgumentTypeError('%.40r is not a size like 8G or 512M' % text)
    return int(digits) * _UNITS[unit]


def _spec(text: str) -> tuple[str, str]:
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise argparse.ArgumentTypeError('%.40r is not KEY=VALUE' % text)
    return key, value
