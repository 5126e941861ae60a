# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that nova-scheduler loads: the weigher and the filter."""
