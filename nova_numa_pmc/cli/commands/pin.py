# SPDX-License-Identifier: Apache-2.0
"""Keep a guest where it is: the agent holds it to its place and never moves it.

The commands apply and undo do not move it either. With --node, the guest is first moved
to that node. The override is kept across reboots, in /var/lib/nova-numa-pmc/guests: at
its next start, the guest is placed like any other and then stays there.

examples:
  nova-numa-rebalance pin instance-0000002a
  nova-numa-rebalance pin instance-0000002a --node 1
  nova-numa-rebalance unpin instance-0000002a

exit codes: 0 done; 1 a problem, the guest is not pinned; 3 pinned, but only part of
its memory has followed; 64 usage error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments, context, exits, output, run_moves
from nova_numa_pmc.core import eligibility, page_choice, pools
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import CpusetError, PageMoveError
from nova_numa_pmc.host import cgroups
from nova_numa_pmc.state import history, overrides

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_guest(parser)
    parser.add_argument('--node', type=int, metavar='N', help='move the guest to this node first')
    arguments.add_wait(parser, 'with --node: ')


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Pin the guest; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    result = None
    if args.node is None:
        uuid, name = command.find_overridden(args.guest)
    else:
        guest = command.find(args.guest)
        uuid, name = guest.uuid, guest.name
        result = _move_to_node(command, guest, args.node, args.wait)
        if result and result.exit_code == exits.PROBLEM:
            raise PageMoveError(
                'guest %s: not pinned: %s'
                % (
                    name,
                    ''.join(entry.why for entry in result.entries) or 'interrupted by a signal',
                )
            )
    override = overrides.Override(uuid, model.PIN, name)
    overrides.put(override, command.root)
    output.print_override(
        override,
        'pinned: it is held where it is and not moved',
        args.json,
        result and run_moves.to_data(result),
    )
    return result.exit_code if result else exits.OK


def _move_to_node(
    command: context.CommandContext, guest: model.Guest, node_id: int, wait_s: float
) -> run_moves.MovesResult | None:
    """Move a guest to a node and return the result, or None if it is there already.

    :param wait_s: how long to wait for another process that moves guests [s]
    :raises PageMoveError: the node has too few CPUs for the guest, or it must not be moved
    """
    observed = command.read_host(write_promises=True)
    node = next((node for node in observed.host.nodes if node.id == node_id), None)
    if node is None or not node.cpus:
        raise PageMoveError(
            'node %d has no CPUs for guests; nodes that have some: %s'
            % (node_id, ', '.join(str(node.id) for node in observed.host.nodes if node.cpus))
        )
    promise = observed.host_promises.promises.get(guest.uuid)
    mem_nodes = (node_id,) if node.memory_bytes else ()
    if (
        promise
        and promise.cpu_nodes == (node_id,)
        and (
            not mem_nodes
            or (mem_nodes == promise.mem_nodes and not _is_elsewhere(command, guest, node_id))
        )
    ):
        return None
    # An earlier override does not matter, as this one will replace it.
    reason_code = eligibility.why_not(eligibility.MOVE, guest._replace(override=''), promise)
    if promise is None or reason_code:
        raise PageMoveError(
            'guest %s cannot be moved: %s' % (guest.name, eligibility.TEXTS[reason_code])
        )
    cpu_count = len(pools.cpus_on((node_id,), observed.host, guest))
    if promise.cpu_nodes != (node_id,) and cpu_count < guest.vcpus:
        raise PageMoveError(
            'guest %s: not pinned: it has %d vCPUs, but may use only %d CPUs of node %d'
            % (guest.name, guest.vcpus, cpu_count, node_id)
        )
    part = plan_records.PlanPart(
        guest.uuid, guest.name, promise.cpu_nodes, (node_id,), mem_nodes, 0
    )
    move = plan_records.requested_move(plan_records.MOVE, (part,), 'pinned there')
    return run_moves.make_moves(command, plan_records.Plan((move,)), observed, history.PIN, wait_s)


def _is_elsewhere(command: context.CommandContext, guest: model.Guest, node_id: int) -> bool:
    """Return whether more than a negligible part of a guest's memory is on other nodes.

    That happens if a move was ended early, or if memory spilled.
    """
    try:
        bytes_by_node = cgroups.read_memory_by_node(cgroups.find(guest.pid, command.root)) or {}
    except CpusetError:
        return False
    return page_choice.notable_bytes_elsewhere(bytes_by_node, (node_id,)) > 0
