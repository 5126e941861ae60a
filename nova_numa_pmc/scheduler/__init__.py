# SPDX-License-Identifier: Apache-2.0
"""What nova-scheduler asks: weigher and filter, and the options of both."""
