# SPDX-License-Identifier: Apache-2.0
"""The decisions, pure: the standard library and ``model`` only.

No files, clock, configuration, logging or randomness. Where a guest belongs: placement, which
asks view (the host in aggregates), hierarchy and domains (who shares memory channels),
candidates, sets, ranking, l3 and explain; ceiling bounds what is promised, node_memory says whose
memory is for guests. What counts amount to: rates, pressure. Which guests to move: rebalance,
which lays out the host (layout, ground, balance), lists what is worth weighing (proposals),
weighs it (weighing) and remembers (ledger, ledger_format); moves holds its records, guest_load
makes its input, explain_move words.
"""
