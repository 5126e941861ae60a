# SPDX-License-Identifier: Apache-2.0
"""Decide what a guest would leave of a host, from the little that the scheduler knows of it."""
