# SPDX-License-Identifier: Apache-2.0
"""Code that the verbs of ``nova-numa-rebalance`` share: observe the host, find and move guests."""
