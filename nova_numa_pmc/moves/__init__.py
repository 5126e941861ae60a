# SPDX-License-Identifier: Apache-2.0
"""Guests held to their places and moved, by the agent and by commands."""
