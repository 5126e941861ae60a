# SPDX-License-Identifier: Apache-2.0
"""Demand of guests over minutes and over a day."""
