# SPDX-License-Identifier: Apache-2.0
"""Checks for common mistakes of operators, with one module for each area.

A check is a function that takes the host's root, or what was read below it, and yields
:class:`~nova_numa_pmc.core.finding.Finding`. Checks only read.
"""
