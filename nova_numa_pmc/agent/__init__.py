# SPDX-License-Identifier: Apache-2.0
"""nova-numa-agent: ticks in stages (ticking), what to move (rebalancing), the loop (serving)."""
