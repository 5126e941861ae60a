# SPDX-License-Identifier: Apache-2.0
"""Overrule the agent for one guest: keep it where it is, leave it alone, or neither.

Without an option, the agent holds the guest to its place and never moves it; nor do
"apply" and "undo". With --node, the guest is first moved to that node. With --ignore,
the guest is neither held nor moved: its CPUs stay as they are until something else
changes them, and at its next start the hook leaves it floating; --release lets it at
once use all CPUs and nodes that guests may use on this host. The override is kept
across reboots, in /var/lib/nova-numa-pmc/guests, until --off removes it: at its next
start, a pinned guest is placed like any other and then stays there.

A guest that was released floats until it is restarted. Threads that were pinned with
virsh vcpupin, emulatorpin or iothreadpin are left alone until the same command gives
them all CPUs (virsh vcpupin GUEST N r).

examples:
  nova-numa-rebalance pin instance-0000002a
  nova-numa-rebalance pin instance-0000002a --node 1
  nova-numa-rebalance pin instance-0000002a --ignore --release
  nova-numa-rebalance pin --off instance-0000002a

exit codes: 0 done, or with --off, there was no override; 1 a problem, nothing was
overruled; 3 pinned, but only part of its memory has followed; 64 usage error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments, context, moves, tables
from nova_numa_pmc.core import eligibility, page_choice, pools, promising
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.exceptions import PageMoveError
from nova_numa_pmc.host import cgroups, holding
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import history, overrides, promises_file

if TYPE_CHECKING:
    import argparse

_KINDS = {model.PIN: 'pinned', model.IGNORE: 'ignored'}
_EFFECTS = {
    model.PIN: 'pinned: it is held where it is and not moved',
    model.IGNORE: 'ignored: it is neither held nor moved, and left floating at its next start',
}


OPTIONS = (
    arguments.option('guest', metavar='GUEST', help='a name, uuid or libvirt id'),
    [
        arguments.option(
            '--node', type=int, metavar='N', help='move the guest to this node first'
        ),
        arguments.option('--ignore', action='store_true', help='leave the guest alone'),
        arguments.option('--off', action='store_true', help='end what this command overruled'),
    ],
    arguments.option(
        '--release', action='store_true', help='with --ignore: release its CPUs and memory now'
    ),
    arguments.WAIT,
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Record or remove the guest's override; return the exit code."""
    if args.release and not args.ignore:
        args.parser.error('--release needs --ignore')
    command = command or context.CommandContext(args.root)
    command.require_root()
    uuid, name = command.find_overridden(args.guest)
    if args.off:
        return _end_override(args, command.root, uuid, name)
    result = None
    override = overrides.Override(uuid, model.IGNORE if args.ignore else model.PIN, name)
    if args.release:
        guest = command.find(args.guest)
        # In this turn, the agent does not hold the guest, and so does not undo the release.
        with moves.take_move_lock(command, 'ignore', args.wait) as turn:
            turn.renew([guest.uuid])
            overrides.put(override, command.root)
            _release(command, guest)
    else:
        if args.node is not None:
            guest = command.find(args.guest)
            result = _move_to_node(command, guest, args.node, args.wait)
            if result and result.exit_code == arguments.PROBLEM:
                raise PageMoveError(
                    'guest %s: not pinned: %s'
                    % (
                        name,
                        ''.join(entry.why for entry in result.entries)
                        or 'interrupted by a signal',
                    )
                )
        overrides.put(override, command.root)
    data = dict(override._asdict(), outcome=result and moves.to_data(result))
    tables.show(args.json, data, ['%s %s: %s' % (name, uuid, _EFFECTS[override.kind])])
    return result.exit_code if result else arguments.OK


def _end_override(args: argparse.Namespace, root: str, uuid: str, name: str) -> int:
    """Remove a guest's override; return the exit code."""
    dropped_override = overrides.drop(uuid, root)
    was = dropped_override and dropped_override.kind
    text = 'no longer ' + _KINDS[was] if was else 'neither pinned nor ignored'
    data = {'uuid': uuid, 'name': name, 'was': was}
    tables.show(args.json, data, ['%s %s: %s' % (name, uuid, text)])
    return arguments.OK


def _release(command: context.CommandContext, guest: model.Guest) -> None:
    """Release a guest that we have placed from its promise, its CPUs and its nodes."""
    host = decide.host_with_pool_cpus(command.root)
    with promises_file.locked(command.host_options, command.root) as draft:
        # Without a promise, it is released from what its groups hold it to.
        decide.reconcile(draft, host, command.host_options, command.root)
    promise = draft.promises.get(guest.uuid)
    if promise is None or promise.origin != model.PLACED:
        return
    # The promise is changed last, so that a release that fails can be repeated, and without the
    # lock of the promises until then, for which starts of guests would have to wait.
    groups = cgroups.of_guest(guest, command.root)
    holding.release_cpus(
        groups,
        pools.cpus_of_promise(promise, host, guest),
        guest.allowed_cpus,
        guest.pinned_groups,
        command.kernel.write,
    )
    holding.unbind_memory(groups, frozenset(promise.mem_nodes), write=command.kernel.write)
    promises_file.replace_running(
        promising.as_floating(promise), command.host_options, command.root, started=promise.started
    )


def _move_to_node(
    command: context.CommandContext, guest: model.Guest, node_id: int, wait_s: float
) -> moves.MovesResult | None:
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
    move = plan_records.Move(
        plan_records.MOVE,
        guest.uuid,
        guest.name,
        promise.cpu_nodes,
        (node_id,),
        mem_nodes,
        0,
        'pinned there',
    )
    return moves.make_moves(command, plan_records.Plan((move,)), observed, history.PIN, wait_s)


def _is_elsewhere(command: context.CommandContext, guest: model.Guest, node_id: int) -> bool:
    """Return whether more than a negligible part of a guest's memory is on other nodes.

    That happens if a move was ended early, or if memory spilled.
    """
    bytes_by_node = cgroups.memory_by_node(guest.pid, command.root) or {}
    return page_choice.notable_bytes_elsewhere(bytes_by_node, (node_id,)) > 0
