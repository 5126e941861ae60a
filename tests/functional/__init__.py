# SPDX-License-Identifier: Apache-2.0
"""Tests of the installed package: the wheel in an environment of its own, and real counters."""
