# SPDX-License-Identifier: Apache-2.0
"""Watcher's own services in this process, with the installed package and its entry points.

The checkout is removed from ``sys.path``, as in ``tests/nova``: its metadata may be outdated.
"""

import os
import sys

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:] = [path for path in sys.path if os.path.realpath(path or '.') != CHECKOUT]
os.chdir(sys.prefix)

import watcher.tests.functional  # noqa: E402, F401 -- chooses how services run, before others do
