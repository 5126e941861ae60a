# SPDX-License-Identifier: Apache-2.0
"""Base classes for the tests of several modules, each with the host that it builds.

Builders, fakes, example values and strategies are in ``tests/fixtures``. No test module imports
another one.
"""
