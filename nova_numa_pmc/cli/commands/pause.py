# SPDX-License-Identifier: Apache-2.0
"""Keep the agent from moving guests, until --off or a reboot.

At its next tick, the agent ends the moves in progress, which are kept if most of the
memory has moved and undone otherwise, and it plans no new ones. It still measures,
publishes and holds guests to their places. The operator's commands still move guests.
After --off, the agent moves guests again if its option rebalance is on.

examples:
  nova-numa-rebalance pause --reason 'replacing memory until 15:00'
  nova-numa-rebalance pause --off

exit codes: 0 done, or with --off, it was not paused; 1 a problem; 64 usage error
"""

from __future__ import annotations

import argparse
import json

from nova_numa_pmc.cli import arguments, context
from nova_numa_pmc.state import pause


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument('--off', action='store_true', help='let the agent move guests again')
    parser.add_argument(
        '--reason',
        type=_reason,
        default='',
        metavar='TEXT',
        help='reason to show in "status", "check" and "systemctl status"',
    )
    arguments.add_common(parser)


def _reason(text: str) -> str:
    if len(text) > pause.REASON_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError('not a line of at most %d characters' % pause.REASON_MAX)
    return text


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Pause the agent, or end its pause; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    if args.off:
        was_paused = pause.end(command.directory)
        if args.json:
            print(json.dumps({'was_paused': was_paused}))
        else:
            print('the agent may move guests again' if was_paused else 'the agent was not paused')
        return arguments.OK
    paused = pause.begin(command.directory, args.reason)
    if args.json:
        print(json.dumps(paused._asdict()))
    else:
        print('the agent moves no guest until "nova-numa-rebalance pause --off"')
    return arguments.OK
