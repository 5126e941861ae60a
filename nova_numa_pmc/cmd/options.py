# SPDX-License-Identifier: Apache-2.0
"""Options that most verbs have."""

from __future__ import annotations


def add_common(parser, json_help='print one JSON object', root_help='look at'):
    """Add ``--root`` and ``--json``."""
    parser.add_argument('--root', default='/', metavar='DIR',
                        help='the file system to %s (default: /)' % root_help)
    parser.add_argument('--json', action='store_true', help=json_help)
