# SPDX-License-Identifier: Apache-2.0
"""Let the agent move guests again, after "pause".

The agent only does so if its option rebalance is on.

examples:
  nova-numa-rebalance resume

exit codes: 0 done, or it was not paused; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import arguments, context, exits
from nova_numa_pmc.state import pause

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    arguments.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """End the agent's pause; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    was_paused = pause.end(command.directory)
    if args.json:
        print(json.dumps({'was_paused': was_paused}))
    else:
        print('the agent may move guests again' if was_paused else 'the agent was not paused')
    return exits.OK
