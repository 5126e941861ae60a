# SPDX-License-Identifier: Apache-2.0
"""What the verbs of ``nova-numa-rebalance`` share: observing the host, finding guests, moves."""
