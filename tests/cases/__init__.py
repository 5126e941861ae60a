# SPDX-License-Identifier: Apache-2.0
"""TestCases that several test modules derive from, each with the host that it builds.

What holds no test case, builders, fakes, example values, strategies, is in ``tests/fixtures``.
No test module imports another one.
"""
