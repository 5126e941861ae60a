# SPDX-License-Identifier: Apache-2.0
"""Bandwidth and latency of the nodes' memory, measured or from the firmware."""
