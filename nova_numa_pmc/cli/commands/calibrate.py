# SPDX-License-Identifier: Apache-2.0
"""Measure the bandwidth of each node's memory, and its latency from each node's CPUs.

For a few seconds, one thread on each core of a node, isolated or not, reads the node's
memory at full speed; then a thread on each node follows a chain of pointers in each
node's memory.
This disturbs guests, so the command asks first, and refuses on a busy host. The
result is saved in /var/lib/nova-numa-pmc/calibration.json, which top, record and the
agent read. Without it, the utilisation of bandwidth is unknown, and latencies are
estimated from the distances that the firmware reports (SLIT).

examples:
  nova-numa-rebalance calibrate
  nova-numa-rebalance calibrate --dry-run
  nova-numa-rebalance calibrate --yes --json --out /tmp/calibration.json

exit codes: 0 measured, or a dry run; 1 refused or failed; 2 you said no;
64 usage error, such as no --yes where the command cannot ask
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, confirm, context, exits, output
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import node_memory
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.host import topology
from nova_numa_pmc.host.calibration import busy_cpus, caches, hmat, memory_probe
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import calibration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable, Iterator

    from nova_numa_pmc import model

    #: (node, kind of its memory) of the nodes whose memory is not for guests.
    _Withheld = tuple[tuple[model.Node, model.NodeMemory], ...]

#: Size of the last-level cache where sysfs does not report it; most are smaller.
_CACHE_DEFAULT_BYTES = 64 << 20
#: Expected time for the bandwidth of a node.
_BANDWIDTH_S = 1.6
#: Expected time for making a chain, and for following it from a node.
_CHAIN_S = 0.8
_PAIR_S = 0.3


class NodePlan(Record):
    """CPUs and memory with which one node is measured.

    :param id: id of the node
    :param cpus: CPUs that read its memory, one for each core
    :param from_node: id of the node of these CPUs: the same node or, if that has no CPUs, the
        nearest one
    :param free_bytes: free memory of the node
    """

    id: int
    cpus: tuple[int, ...]
    from_node: int
    sizes: memory_probe.ProbeSizes
    free_bytes: int

    def needed_bytes(self) -> int:
        """Return the most memory of the node that the measurement uses at any time."""
        return self.sizes.total_bytes(len(self.cpus))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--yes', action='store_true', help='do not ask')
    parser.add_argument('--dry-run', action='store_true', help='show what it would do and exit')
    parser.add_argument(
        '--force',
        action='store_true',
        help='measure even if the host is busy (this disturbs guests, and the figures come out '
        'too low)',
    )
    arguments.add_json(parser)
    parser.add_argument(
        '--out',
        default=calibration.PATH,
        metavar='FILE',
        help='file to save the result to (default: %(default)s)',
    )


def run(
    args: argparse.Namespace,
    command: context.CommandContext | None = None,
    read_host: Callable[[], model.Topology] = topology.read,
) -> int:
    """Measure and save the result; return the exit code."""
    command = command or context.CommandContext()
    if not args.dry_run and not confirm.may_proceed(args, command):
        return exits.USAGE
    if not args.dry_run:
        refuse_unwritable(args.out)
    host, withheld, plans = _read_plans(read_host)
    for line in plan_lines(plans, args.out, withheld):
        print(line, file=sys.stderr)
    if args.dry_run:
        if args.json:
            print(json.dumps({'nodes': [_plan_data(node_plan) for node_plan in plans]}, indent=2))
        return exits.OK
    _refuse_to_disturb(host, plans, args.force)
    try:
        if not args.yes:
            if not confirm.ask_operator(command, 'measure now?'):
                _print_line('not measured: nothing was changed')
                return exits.NOT_MADE
            host, _withheld, plans = _read_plans(read_host)  # guests may have started meanwhile
            _refuse_to_disturb(host, plans, args.force)
        measured, problems = measure(host, plans, _print_line)
    except KeyboardInterrupt:
        _print_line('interrupted by the operator: nothing was saved')
        return exits.PROBLEM
    calibration.write(measured, args.out)
    for line in output.problem_lines(problems):
        _print_line(line)
    if args.json:
        print(json.dumps(dict(calibration.to_data(measured), problems=problems), indent=2))
    else:
        print('\n'.join(to_lines(measured, args.out)))
    return exits.OK


def _read_plans(
    read_host: Callable[[], model.Topology],
) -> tuple[model.Topology, _Withheld, tuple[NodePlan, ...]]:
    """Return the host, its nodes whose memory is not for guests, and how to measure the others."""
    host = read_host()
    withheld = node_memory.list_withheld(
        host.nodes, host_options.read_under_root('/').placement_options
    )
    return host, withheld, plan(host, withheld)


def _print_line(line: str) -> None:
    print('calibrate: %s' % line, file=sys.stderr, flush=True)


def plan(host: model.Topology, withheld: _Withheld, root: str = '/') -> tuple[NodePlan, ...]:
    """Return how to measure each node that has memory for guests.

    :param withheld: the nodes whose memory is not for guests, as :func:`node_memory.list_withheld`
        returns them. It is not read: that could disturb the user of a GPU, for example, and no
        decision depends on its bandwidth
    :raises CalibrationError: no node has memory for guests, or none has CPUs
    """
    plans = []
    withheld_ids = {node.id for node, _ in withheld}
    for position, node in enumerate(host.nodes):
        reader = _nearest_with_cpus(host, position)
        if not node.memory_bytes or node.id in withheld_ids or reader is None:
            continue
        # Isolated CPUs as well: the others may be too few to saturate the memory.
        online = reader.online_cpus
        cpus = tuple(sorted(min(core & online) for core in host.cores if core & online))
        cache_bytes = (caches.read_last_level(cpus[0], root) or (_CACHE_DEFAULT_BYTES, None))[0]
        all_caches_bytes = caches.read_total_bytes(online, root) or _CACHE_DEFAULT_BYTES
        plans.append(
            NodePlan(
                node.id,
                cpus,
                reader.id,
                memory_probe.probe_sizes(cache_bytes, all_caches_bytes, len(cpus)),
                node.free_bytes,
            )
        )
    if not plans:
        raise CalibrationError('no node has memory for guests, or none has CPUs')
    return tuple(plans)


def _nearest_with_cpus(host: model.Topology, position: int) -> model.Node | None:
    """Return the node with CPUs that is nearest to the node at ``position``, possibly itself.

    :returns: the node, or None if no node has CPUs
    """
    distances = host.distances[position]
    return min(
        (node for node in host.nodes if node.online_cpus),
        default=None,
        key=lambda node: (distances[host.nodes.index(node)], node.id),
    )


def plan_lines(plans: tuple[NodePlan, ...], path: str, withheld: _Withheld = ()) -> Iterator[str]:
    """Yield lines that describe the measurements that are about to be made.

    :param path: the file to which the result will be saved
    :param withheld: the nodes that are not read, as for :func:`plan`
    """
    from_nodes = {node_plan.from_node for node_plan in plans}
    expected_s = (_BANDWIDTH_S + _CHAIN_S + _PAIR_S * len(from_nodes)) * len(plans)
    yield 'This takes about %.0f s and disturbs guests for that time:' % max(1, expected_s)
    for node_plan in plans:
        yield (
            '  node %d: %d threads of node %d read its memory at full speed, then a chain of %d'
            ' lines is followed from the CPUs of each of %d nodes; needs up to %d of its %d MiB '
            'of free memory'
            % (
                node_plan.id,
                len(node_plan.cpus),
                node_plan.from_node,
                memory_probe.CHAIN_LINES,
                len(from_nodes),
                node_plan.needed_bytes() >> 20,
                node_plan.free_bytes >> 20,
            )
        )
    for node, memory in withheld:
        yield '  node %d: not read: its memory is %s (%s)' % (
            node.id,
            node_memory.TEXTS[memory.kind],
            memory.source,
        )
    yield '  the result replaces %s' % path


def _plan_data(node_plan: NodePlan) -> dict[str, object]:
    return {
        'id': node_plan.id,
        'threads': len(node_plan.cpus),
        'from_node': node_plan.from_node,
        'needed_bytes': node_plan.needed_bytes(),
        'free_bytes': node_plan.free_bytes,
    }


def refuse_unwritable(path: str) -> None:
    """Raise an error if a file could not be saved after the measurement.

    :raises CalibrationError: its directory, or the nearest one that exists, is not writable
    """
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise CalibrationError(
            '%s is not writable, so the result could not be saved: calibrate as root, or save it '
            'elsewhere with --out' % directory
        )


def _refuse_to_disturb(host: model.Topology, plans: Iterable[NodePlan], force: bool) -> None:
    """Raise an error if measuring would disturb others too much.

    :raises CalibrationError: see :func:`refuse_without_room` and, unless ``force``,
        :func:`busy_cpus.refuse_if_busy`
    """
    refuse_without_room(plans)
    if not force:
        busy_cpus.refuse_if_busy(busy_cpus.read_ratios(), host)


def refuse_without_room(plans: Iterable[NodePlan]) -> None:
    """Raise an error if measuring would leave a node short of free memory.

    :raises CalibrationError: a node has less than twice the memory that is needed
    """
    for node_plan in plans:
        if node_plan.needed_bytes() > node_plan.free_bytes // 2:
            raise CalibrationError(
                'node %d has %d MiB free, but %d MiB are needed, and as much again in reserve: '
                'wait until guests have ended, or drop the page cache (echo 1 > '
                '/proc/sys/vm/drop_caches)'
                % (node_plan.id, node_plan.free_bytes >> 20, node_plan.needed_bytes() >> 20)
            )


def measure(
    host: model.Topology,
    plans: Collection[NodePlan],
    print_line: Callable[[str], None],
    root: str = '/',
) -> tuple[calibration.Calibration, list[str]]:
    """Measure the nodes and return (the calibration, problems).

    A latency that cannot be measured is estimated, and a bandwidth that cannot be measured is
    None; the problems say why.

    :raises CalibrationError: no bandwidth could be measured
    """
    ids = [node.id for node in host.nodes]
    bandwidths: dict[int, float | None] = dict.fromkeys(ids)
    problems: list[str] = []
    measured_ns: list[list[float | None]] = [[None] * len(ids) for _ in ids]
    first_cpus = {
        node_plan.from_node: node_plan.cpus[0]
        for node_plan in plans
        if node_plan.id == node_plan.from_node
    }
    has_several_nodes = len(ids) > 1
    for node_plan in plans:
        # With a single node, memory need not be bound, which may require a privilege.
        node = node_plan.id if has_several_nodes else None
        try:
            print_line('node %d: bandwidth' % node_plan.id)
            bandwidths[node_plan.id] = memory_probe.read_bytes_per_sec(
                node_plan.cpus, node, node_plan.sizes.slice_bytes
            )
            print_line('node %d: latency' % node_plan.id)
            chain = memory_probe.PointerChain(
                node, node_plan.sizes.chain_bytes, node_plan.sizes.flush_bytes
            )
            with contextlib.closing(chain):
                for from_node, cpu in first_cpus.items():
                    row = measured_ns[ids.index(from_node)]
                    row[ids.index(node_plan.id)] = chain.latency_ns(cpu)
        except (CalibrationError, OSError, MemoryError) as error:
            problems.append('node %d: %s' % (node_plan.id, error))
    if not any(bandwidths.values()):
        raise CalibrationError('nothing could be measured: ' + '; '.join(problems))
    latencies_ns, sources = calibration.fill_matrix(
        measured_ns, host.distances, _firmware_latencies_ns(ids, root, problems)
    )
    return calibration.Calibration(
        time.time(),
        tuple(ids),
        tuple(bandwidths[node] for node in ids),
        tuple(tuple(round(value, 1) for value in row) for row in latencies_ns),
        sources,
    ), problems


def _firmware_latencies_ns(
    ids: list[int], root: str, problems: list[str]
) -> list[list[float | None]]:
    """Return the latencies in the firmware's HMAT, by position, in rows from the CPUs.

    They are all None if HMAT's proximity domains are not the nodes of ``ids``.

    :param problems: a list to which an error is added
    """
    try:
        latencies_ns = hmat.read_latencies_ns(root)
    except CalibrationError as error:
        problems.append(str(error))
        latencies_ns = {}
    domains = {domain for pair in latencies_ns for domain in pair}
    if not domains <= set(ids):
        latencies_ns = {}
    return [[latencies_ns.get((from_id, to_id)) for to_id in ids] for from_id in ids]


def to_lines(measured: calibration.Calibration, path: str) -> list[str]:
    """Return a calibration as lines of text.

    :param path: the file to which it was saved
    """
    headings = ('node', 'read GB/s', *('ns to node %d' % node for node in measured.nodes))
    rows = [
        (
            str(node),
            tables.number(bandwidth and bandwidth / 1e9, 1),
            *(
                '%.1f%s' % (value, '' if source == calibration.MEASURED else ' ' + source)
                for value, source in zip(row, sources)
            ),
        )
        for node, bandwidth, row, sources in zip(
            measured.nodes, measured.read_bytes_per_sec, measured.latencies_ns, measured.sources
        )
    ]
    return [
        *tables.to_lines(tables.text_table(headings, rows)),
        '',
        'saved in %s; the same values as options, which override the file:' % path,
        '',
        *calibration.config_lines(measured),
    ]
