# SPDX-License-Identifier: Apache-2.0
"""Plug-ins that Nova's API loads."""
