# SPDX-License-Identifier: Apache-2.0
"""A numerical simulation of hosts whose guests run, wait, access remote memory and move."""
