# SPDX-License-Identifier: Apache-2.0
"""Estimate the pressure and loss that a guest would cause, from what the scheduler knows."""
