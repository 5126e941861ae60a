# SPDX-License-Identifier: Apache-2.0
"""Command-line options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.cli import parse

if TYPE_CHECKING:
    import argparse

#: How long a command measures unless it is told otherwise [s].
INTERVAL_S = 5.0


def add_common(
    parser: argparse.ArgumentParser,
    json_help: str = 'print one JSON object',
    root_help: str = 'look at',
) -> None:
    """Add ``--root`` and ``--json``.

    :param root_help: what the command does to the file system, for the help text
    """
    parser.add_argument(
        '--root',
        default='/',
        metavar='DIR',
        help='root of the file system to %s (default: /)' % root_help,
    )
    add_json(parser, json_help)


def add_json(parser: argparse.ArgumentParser, json_help: str = 'print one JSON object') -> None:
    """Add ``--json`` only, for a command that has no use for ``--root``."""
    parser.add_argument('--json', action='store_true', help=json_help)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add ``--html``."""
    parser.add_argument(
        '--html', metavar='FILE', help='also write a page with a picture of nodes and guests'
    )


def add_guest(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the commands that concern one guest."""
    parser.add_argument('guest', metavar='GUEST', help='a name, uuid or libvirt id')
    add_common(parser)


def add_guests(parser: argparse.ArgumentParser) -> None:
    """Add the argument with the names of guests."""
    parser.add_argument(
        'guest',
        nargs='*',
        metavar='GUEST',
        help='consider only these guests (name, uuid or libvirt id)',
    )


def add_measuring(
    parser: argparse.ArgumentParser, default_s: float | None = INTERVAL_S, default: str = '5'
) -> None:
    """Add ``--interval`` and ``--payback``.

    :param default: what the help text says about the default
    """
    from nova_numa_pmc.core.rebalance import planner  # not needed by most commands

    parser.add_argument(
        '--interval',
        type=parse.option_duration_s,
        default=default_s,
        metavar='DURATION',
        help='how long to measure (default: %s)' % default,
    )
    parser.add_argument(
        '--payback',
        type=parse.option_duration_s,
        default=planner.PAYBACK_S,
        metavar='DURATION',
        help='time within which a move has to pay, if the load stays as it is (default: 10m)',
    )


def add_moving(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that move guests."""
    parser.add_argument('--yes', action='store_true', help='do not ask')
    add_wait(parser)


def add_wait(parser: argparse.ArgumentParser, when: str = '') -> None:
    """Add ``--wait``.

    :param when: beginning of the help text, such as 'with --node: '
    """
    parser.add_argument(
        '--wait',
        type=parse.option_duration_s,
        default=30.0,
        metavar='DURATION',
        help=when + 'how long to wait for another process that moves guests (default: 30)',
    )
