# SPDX-License-Identifier: Apache-2.0
"""The decisions, pure: the standard library and ``model`` only.

No files, clock, configuration, logging or randomness. Where a guest belongs: placement, which
asks view (the host in aggregates), domains, candidates, sets and ranking, and explain. What
counts amount to: rates, pressure.
"""
