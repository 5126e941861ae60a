# SPDX-License-Identifier: Apache-2.0
"""Decide which guests to move, and whether a move pays."""
