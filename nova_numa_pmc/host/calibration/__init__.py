# SPDX-License-Identifier: Apache-2.0
"""Bandwidth and latency of the nodes' memory, as measured or as reported by the firmware."""
