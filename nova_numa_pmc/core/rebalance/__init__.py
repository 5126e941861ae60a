# SPDX-License-Identifier: Apache-2.0
"""Which guests to move, and whether a move pays."""
