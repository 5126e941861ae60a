# SPDX-License-Identifier: Apache-2.0
"""Hold guests to their places and move them, for the agent and for commands."""
