# SPDX-License-Identifier: Apache-2.0
"""Run nova-numa-rebalance: dispatch to its commands, which are the modules of ``cli.commands``."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc import exceptions
from nova_numa_pmc.cli import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

#: {command: one line of help}. The module ``nova_numa_pmc.cli.commands.NAME`` provides
#: its options in ``OPTIONS`` and ``run(args)``, which returns the exit code and calls
#: ``args.parser.error()`` for wrong usage that argparse does not detect.
COMMANDS = {
    'apply': 'show which moves of guests would pay, ask, and make them',
    'check': 'find the common reasons why guests are not placed or hosts not weighed',
    'explain': 'show where a guest would go on this host, and why',
    'fleet': 'show which guests should be live-migrated to other hosts, and why',
    'history': 'show which guests were moved, by what, why, and with what result',
    'hook': 'install, remove or check the libvirt hook that places guests at their start',
    'pause': 'keep the agent from moving guests, or end that',
    'pin': 'keep a guest where it is or on a node, leave it alone, or end either',
    'plan': 'show which moves of guests would pay, and why',
    'record': 'record samples of this host to a file',
    'report': 'show the means of a recording, or compare it with another',
    'status': 'show nodes and guests: where each is, and why',
    'top': 'show a live view of node pressure and of where guests run and access memory',
    'undo': 'undo the moves of the last command, or one move from the history',
    'whatif': 'show which hosts Nova would choose, with our weigher and without',
}
#: What runs if no command is given.
_NO_COMMAND = 'status'


class _CommandParser(arguments.Parser):
    """A command's parser, which imports the command's module when it is used.

    A command does not wait for the imports of the others, and works where their dependencies
    are not installed.
    """

    command: str

    def parse_known_args(  # type: ignore[override]  # only one of its overloads is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self.fill()
        return super().parse_known_args(args, namespace)

    def fill(self) -> None:
        """Import the command's module, and take its options from it."""
        module = importlib.import_module('nova_numa_pmc.cli.commands.' + self.command)
        self.description = module.__doc__
        arguments.add(self, module.OPTIONS)
        self.set_defaults(run=module.run, parser=self)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = arguments.Parser(
        prog='nova-numa-rebalance',
        description='NUMA placement of libvirt guests on this host. Without a command, it shows '
        'the status, whose options may be given.',
        epilog='Guests are given by name, uuid or libvirt id (top, report and history: name or '
        'uuid). ' + arguments.EXIT_CODES_HELP,
    )
    arguments.add(parser, [arguments.VERSION])
    subparsers = parser.add_subparsers(
        dest='command', metavar='COMMAND', required=True, parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        subparsers.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        ).command = name
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or (argv[0].startswith('-') and argv[0] not in ('-h', '--help', '--version')):
        argv.insert(0, _NO_COMMAND)
    # Python has None for what was closed.
    sys.stdout = sys.stdout or open(os.devnull, 'w')  # noqa: SIM115 -- open until the end
    sys.stderr = sys.stderr or open(os.devnull, 'w')  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')  # what the locale cannot encode is printed as '?'
    try:
        try:
            args = build_parser().parse_args(argv)
            code: int = args.run(args)
            return code
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return arguments.PROBLEM
    except KeyboardInterrupt:
        print('nova-numa-rebalance: interrupted by the operator', file=sys.stderr)
        return arguments.PROBLEM
    except (exceptions.NumaPmcError, OSError) as error:
        print('nova-numa-rebalance: %s' % error, file=sys.stderr)
        _drop_output()
        return arguments.PROBLEM


def _drop_output() -> None:
    """Drop the output that is not written yet; otherwise, Python tries again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == '__main__':
    sys.exit(main())
