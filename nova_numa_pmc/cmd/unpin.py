# SPDX-License-Identifier: Apache-2.0
"""Take back what pin or ignore has said of a guest: it is held and may be moved again.

A guest whose CPUs ignore --release has given back floats until it starts anew.

examples:
  nova-numa-rebalance unpin instance-0000002a
  nova-numa-rebalance unpin 6ba7b810-9dad-11d1-80b4-00c04fd430c8   # one that has gone

exit codes: 0 done, or nothing was said of it; 1 a problem; 64 wrong usage
"""

import json

from nova_numa_pmc import overrides
from nova_numa_pmc.cmd import exits, pin
from nova_numa_pmc.operating import seeing


def configure(parser):
    """Add the options."""
    pin.add_guest(parser)


def run(args, here=None):
    """Forget what was said of the guest; return the exit code."""
    here = here or seeing.Here(args.root)
    here.need_root()
    uuid, name = here.find_said(args.guest)
    dropped = overrides.drop(uuid, here.root)
    if args.json:
        print(json.dumps({'uuid': uuid, 'name': name, 'was': dropped and dropped.what}))
    elif dropped:
        print('%s %s: no longer %s' % (name, uuid, {
            overrides.PIN: 'pinned', overrides.IGNORE: 'ignored'}[dropped.what]))
    else:
        print('%s %s: neither pinned nor ignored' % (name, uuid))
    return exits.OK
