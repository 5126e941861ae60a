# SPDX-License-Identifier: Apache-2.0
"""Check what operators commonly get wrong, one module for each area.

A check is a function that takes the host's root (or what was read below it)
and yields :class:`~nova_numa_pmc.finding.Finding`. Checks only read.
"""
