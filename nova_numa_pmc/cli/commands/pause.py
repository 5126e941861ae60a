# SPDX-License-Identifier: Apache-2.0
"""Keep the agent from moving guests, until --off or for a time.

At its next tick, the agent ends the moves in progress, which are kept if most of the
memory has moved and undone otherwise, and it plans no new ones. It still measures,
publishes and holds guests to their places. The operator's commands still move guests.
After --off, the agent moves guests again if its option rebalance is auto, even if it
had stopped because its last moves did not pay. A pause is kept
across reboots, in /var/lib/nova-numa-pmc/paused; a file that something else puts there
pauses the agent too, with its first line as the reason.

examples:
  nova-numa-rebalance pause --reason 'replacing memory until 15:00'
  nova-numa-rebalance pause --for 2h
  nova-numa-rebalance pause --off

exit codes: 0 done, or with --off, it was not paused; 1 a problem; 64 usage error
"""

from __future__ import annotations

import argparse

from nova_numa_pmc.cli import arguments, context, tables
from nova_numa_pmc.state import pause


def _reason(text: str) -> str:
    if len(text) > pause.REASON_MAX or not text.isprintable():
        raise argparse.ArgumentTypeError('not a line of at most %d characters' % pause.REASON_MAX)
    return text


OPTIONS = (
    [
        arguments.option('--off', action='store_true', help='let the agent move guests again'),
        arguments.option(
            '--for',
            dest='duration_s',
            type=arguments.duration_s,
            metavar='DURATION',
            help='how long, such as 90s, 15m, 2h or 7d (default: until --off)',
        ),
    ],
    arguments.option(
        '--reason',
        type=_reason,
        default='',
        metavar='TEXT',
        help='reason to show in "status", "check" and "systemctl status"',
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Pause the agent, or end its pause; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    if args.off:
        was_paused = pause.end(command.root)
        text = 'the agent may move guests again' if was_paused else 'the agent was not paused'
        tables.show(args.json, {'was_paused': was_paused}, [text])
        return arguments.OK
    paused = pause.begin(command.root, args.reason, args.duration_s)
    text = 'the agent moves no guest: %s; "pause --off" ends that' % str(paused)
    tables.show(args.json, paused._asdict(), [text])
    return arguments.OK
