# SPDX-License-Identifier: Apache-2.0
"""What nova-compute publishes: the metrics' keys, and Nova's plug-in that sends them."""
