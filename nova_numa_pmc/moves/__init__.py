# SPDX-License-Identifier: Apache-2.0
"""Move guests, for the agent and for commands."""
