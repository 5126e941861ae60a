# SPDX-License-Identifier: Apache-2.0
"""What the verbs of ``nova-numa-rebalance`` share: see the host, find guests, make moves."""
