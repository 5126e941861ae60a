# SPDX-License-Identifier: Apache-2.0
"""Let the agent move guests again, after "pause".

It moves them only where its option rebalance is on.

examples:
  nova-numa-rebalance resume

exit codes: 0 done, or it was not paused; 1 a problem; 64 usage error
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nova_numa_pmc.cli import context, exits, options
from nova_numa_pmc.state import pause

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_common(parser)


def run(args: argparse.Namespace, command: context.CommandContext | None = None) -> int:
    """Let the agent go on; return the exit code."""
    command = command or context.CommandContext(args.root)
    command.require_root()
    was = pause.end(command.directory)
    if args.json:
        print(json.dumps({'was_paused': was}))
    else:
        print('the agent may move guests again' if was else 'it was not paused')
    return exits.OK
