# SPDX-License-Identifier: Apache-2.0
"""Decide where a guest belongs on this host, record it, and hold the guest to it."""
