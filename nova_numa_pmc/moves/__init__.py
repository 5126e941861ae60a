# SPDX-License-Identifier: Apache-2.0
"""Make planned moves of guests, for the agent and for commands."""
