# SPDX-License-Identifier: Apache-2.0
"""TestCases from which several test modules derive, each with the host that it builds.

Builders, fakes, example values and strategies, which are not test cases, are in
``tests/fixtures``. No test module imports another one.
"""
