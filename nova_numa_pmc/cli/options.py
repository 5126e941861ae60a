# SPDX-License-Identifier: Apache-2.0
"""Options that most verbs have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_common(
    parser: argparse.ArgumentParser,
    json_help: str = 'print one JSON object',
    root_help: str = 'look at',
) -> None:
    """Add ``--root`` and ``--json``."""
    parser.add_argument(
        '--root',
        default='/',
        metavar='DIR',
        help='root of the file system to %s (default: /)' % root_help,
    )
    add_json(parser, json_help)


def add_json(parser: argparse.ArgumentParser, json_help: str = 'print one JSON object') -> None:
    """Add ``--json``, alone where a verb reads no host's files."""
    parser.add_argument('--json', action='store_true', help=json_help)
