# SPDX-License-Identifier: Apache-2.0
"""What nova-compute publishes: metrics (the keys), monitor (Nova's plug-in)."""
