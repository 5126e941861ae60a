# SPDX-License-Identifier: Apache-2.0
"""What nova-scheduler asks: the weigher and the filter."""
