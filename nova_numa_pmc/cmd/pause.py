# SPDX-License-Identifier: Apache-2.0
"""Keep the agent from moving guests, until "resume" or a reboot.

It ends the moves in hand (kept where most of the memory has moved, else taken back)
at its next tick, and plans none. It still measures, publishes and holds guests to
their places. Commands of the operator's move guests as before.

examples:
  nova-numa-rebalance pause --reason 'memory is replaced until 15:00'
  nova-numa-rebalance resume

exit codes: 0 done; 1 a problem; 64 wrong usage
"""

from __future__ import annotations

import argparse
import json

from nova_numa_pmc.cmd import exits, options
from nova_numa_pmc.movement import pausing
from nova_numa_pmc.operating import seeing


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        '--reason',
        type=_reason,
        default='',
        metavar='TEXT',
        help='why: status, check and systemctl status show it',
    )
    options.add_common(parser)


def _reason(text: str) -> str:
    if len(text) > pausing.REASON_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError(
            'not a line of at most %d characters' % pausing.REASON_MAX
        )
    return text


def run(args: argparse.Namespace, here: seeing.Here | None = None) -> int:
    """Pause the agent; return the exit code."""
    here = here or seeing.Here(args.root)
    here.need_root()
    paused = pausing.begin(here.directory, args.reason)
    if args.json:
        print(json.dumps(paused._asdict()))
    else:
        print('the agent moves no guest until "nova-numa-rebalance resume"')
    return exits.OK
