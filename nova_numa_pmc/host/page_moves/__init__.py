# SPDX-License-Identifier: Apache-2.0
"""Locate the pages of a running guest and move them between nodes."""
