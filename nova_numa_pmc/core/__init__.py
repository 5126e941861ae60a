# SPDX-License-Identifier: Apache-2.0
"""Decisions as pure functions: no files, clock, configuration, logging or randomness.

Symbols in formulas are those of doc/source/reference/pressure.rst. Where code follows a formula,
``n`` is the position of the node whose CPUs a guest uses, ``m`` that of the node whose memory it
accesses, and ``u`` a utilisation.
"""
