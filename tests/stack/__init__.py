# SPDX-License-Identifier: Apache-2.0
"""OpenStack's real control plane and emulated compute hosts: see README.rst."""

import pathlib
import sys

# The lab's machines are imported by their own names, as the lab's scripts import them.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'lab'))
