# SPDX-License-Identifier: Apache-2.0
"""The decisions, pure: no files, clock, configuration, logging or randomness.

Symbols in formulas are those of doc/source/reference/pressure.rst.
"""
