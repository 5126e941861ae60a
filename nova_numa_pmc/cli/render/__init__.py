# SPDX-License-Identifier: Apache-2.0
"""Lay out what the commands show as tables, lines and plots, and draw it on a terminal."""
