# SPDX-License-Identifier: Apache-2.0
"""Code that nova-numa-rebalance's commands share: observe the host, find and move guests."""
