# SPDX-License-Identifier: Apache-2.0
"""Metrics that nova-compute publishes: their keys, and Nova's plug-in that sends them."""
