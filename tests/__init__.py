# SPDX-License-Identifier: Apache-2.0
"""Tests, and what tests and benchmarks share.

Each folder below says what it contains; CONTRIBUTING.rst says how to run them.
"""
