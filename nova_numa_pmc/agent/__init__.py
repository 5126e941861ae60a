# SPDX-License-Identifier: Apache-2.0
"""nova-numa-agent: a loop of ticks whose stages measure, publish, hold guests and move them."""
