# SPDX-License-Identifier: Apache-2.0
"""A purely numerical model of a host whose guests run, wait, access remote memory and move."""
