# SPDX-License-Identifier: Apache-2.0
"""Undo pin or ignore: the guest is held again, and may be moved again.

Threads that were pinned after the guest's start, with virsh vcpupin, emulatorpin or
iothreadpin or by hand, are unpinned through virsh, and the agent holds them like the
other threads. After "ignore --release", the guest floats until it is restarted.

examples:
  nova-numa-rebalance unpin instance-0000002a
  nova-numa-rebalance unpin 6ba7b810-9dad-11d1-80b4-00c04fd430c8   # no longer on this host

exit codes: 0 done, or it was neither pinned nor ignored; 1 a problem, such as
libvirt refusing; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.cli import arguments, context, exits, pinned_threads
from nova_numa_pmc.state import overrides

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_guest(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Remove the guest's override; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    uuid, name = command.find_overridden(args.guest)
    dropped_override = overrides.drop(uuid, command.root)
    thread_names = _unpin_threads(command, uuid)
    if args.json:
        print(
            json.dumps(
                {
                    'uuid': uuid,
                    'name': name,
                    'was': dropped_override and dropped_override.kind,
                    'restored': thread_names,
                }
            )
        )
    elif dropped_override:
        print(
            '%s %s: no longer %s'
            % (name, uuid, {model.PIN: 'pinned', model.IGNORE: 'ignored'}[dropped_override.kind])
        )
    elif not thread_names:
        print('%s %s: neither pinned nor ignored' % (name, uuid))
    if thread_names and not args.json:
        print('%s %s: threads unpinned: %s' % (name, uuid, ', '.join(thread_names)))
    return exits.OK


def _unpin_threads(command: context.CommandContext, uuid: str) -> list[str]:
    """Unpin the threads that others have pinned since the guest was placed.

    :returns: names of the threads' groups, such as 'vcpu0'
    """
    for guest in command.guests()[0]:
        if guest.uuid == uuid:
            observed = command.read_host()
            names = list(
                pinned_threads.find(
                    guest, observed.host_promises.promises.get(uuid), observed.host, command.root
                )
            )
            if names:
                pinned_threads.unpin(guest, names, command.root, command.run)
            return names
    return []
