# SPDX-License-Identifier: Apache-2.0
"""Shared by the verbs of ``nova-numa-rebalance``: see the host, find guests, make moves."""
