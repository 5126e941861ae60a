# SPDX-License-Identifier: Apache-2.0
"""Estimate the pressures that a guest would leave on a host, from what the scheduler knows."""
