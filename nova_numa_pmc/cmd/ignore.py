# SPDX-License-Identifier: Apache-2.0
"""Leave a guest alone: it is neither held to its place nor moved.

Its CPUs stay as they are until somebody changes them, and at its next start the
hook leaves it floating. With --release its CPUs and memory are widened at once to
all that the host gives to guests. That is kept over reboots, in
/var/lib/nova-numa-pmc/guests, until "unpin".

examples:
  nova-numa-rebalance ignore instance-0000002a
  nova-numa-rebalance ignore instance-0000002a --release

exit codes: 0 done; 1 a problem; 64 wrong usage
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model, overrides, promises
from nova_numa_pmc.bookkeeping import LOCK_TIMEOUT_S
from nova_numa_pmc.cmd import exits, pin, top
from nova_numa_pmc.host import cgroups, cpuset
from nova_numa_pmc.operating import applying, seeing

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    pin.add_guest(parser)
    parser.add_argument('--release', action='store_true', help='widen it now')
    parser.add_argument(
        '--wait',
        type=top.seconds,
        default=30.0,
        metavar='SECONDS',
        help='with --release: wait so long for whoever else moves guests (default: 30)',
    )


def run(args: argparse.Namespace, here: seeing.Here | None = None) -> int:
    """Ignore the guest; return the exit code."""
    here = here or seeing.Here(args.root)
    here.need_root()
    if not args.release:
        uuid, name = here.find_said(args.guest)
        pin.say(here, overrides.Override(uuid, overrides.IGNORE, name), args)
        return exits.OK
    guest = here.find(args.guest)
    # In turn: an agent in the middle of a tick would write what is taken away here.
    with applying.hold_turn(here, 'ignore', args.wait):
        pin.say(here, overrides.Override(guest.uuid, overrides.IGNORE, guest.name), args)
        _release(here, guest)
    return exits.OK


def _release(here: seeing.Here, guest: model.Guest) -> None:
    """Promise a guest no place and let it go wherever guests may; what others placed stays."""
    with promises.locked(here.shared, here.root, LOCK_TIMEOUT_S) as ledger:
        promise = ledger.promises.get(guest.uuid)
        if promise is None or promise.origin != model.PLACED:
            return
        ledger.put(
            promise._replace(
                cpu_nodes=(), mem_nodes=(), mem_bytes=(), bound=False, origin=model.FLOATING
            )
        )
    writing = {name: each for name, each in here.writing.items() if name == 'write'}
    groups = cgroups.find(guest.pid, here.root)
    cpuset.release_cpus(groups, **writing)
    cpuset.release_memory(groups, frozenset(promise.mem_nodes), **writing)
