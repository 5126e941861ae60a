# SPDX-License-Identifier: Apache-2.0
"""Leave a guest alone: it is neither held to its place nor moved.

Its CPUs stay as they are until something else changes them, and at its next start
the hook leaves it floating. With --release, the guest may at once use all CPUs and
nodes that guests may use on this host. The override is kept across reboots, in
/var/lib/nova-numa-pmc/guests, until "unpin" removes it.

examples:
  nova-numa-rebalance ignore instance-0000002a
  nova-numa-rebalance ignore instance-0000002a --release

exit codes: 0 done; 1 a problem; 64 usage error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import host_cpus, model, promises
from nova_numa_pmc.cli import arguments, context, exits, output, run_moves
from nova_numa_pmc.core import pools
from nova_numa_pmc.host import cgroups, holding
from nova_numa_pmc.state import overrides

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_guest(parser)
    parser.add_argument('--release', action='store_true', help='release its CPUs and memory now')
    arguments.add_wait(parser, 'with --release: ')


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Ignore the guest; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    if not args.release:
        override = _override(*command.find_overridden(args.guest))
        overrides.put(override, command.root)
        _print(override, args.json)
        return exits.OK
    guest = command.find(args.guest)
    # The lock keeps an agent in the middle of a tick from writing back what is released here.
    with run_moves.take_move_lock(command, 'ignore', args.wait):
        override = _override(guest.uuid, guest.name)
        overrides.put(override, command.root)
        _release(command, guest)
        _print(override, args.json)
    return exits.OK


def _override(uuid: str, name: str) -> overrides.Override:
    return overrides.Override(uuid, model.IGNORE, name)


def _print(override: overrides.Override, as_json: bool) -> None:
    output.print_override(
        override,
        'ignored: it is neither held nor moved, and left floating at its next start',
        as_json,
    )


def _release(command: context.CommandContext, guest: model.Guest) -> None:
    """Release a guest that we have placed from its promise, its CPUs and its nodes."""
    host = host_cpus.host_with_pool_cpus(command.root)
    with promises.locked(command.host_options, command.root) as draft:
        # Without a promise, it is released from what its groups hold it to.
        promises.reconcile(draft, host, command.host_options, command.root)
    promise = draft.promises.get(guest.uuid)
    if promise is None or promise.origin != model.PLACED:
        return
    # The promise is changed last, so that a release that fails can be repeated, and without the
    # lock of the promises until then, for which starts of guests would have to wait.
    groups = cgroups.find(guest.pid, command.root)
    holding.release_cpus(
        groups,
        pools.cpus_of_promise(promise, host, guest),
        guest.allowed_cpus,
        guest.pinned_groups,
        command.kernel.write,
    )
    holding.unbind_memory(groups, frozenset(promise.mem_nodes), write=command.kernel.write)
    promises.replace_running(
        promises.as_floating(promise), command.host_options, command.root, started=promise.started
    )
