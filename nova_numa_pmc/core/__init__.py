# SPDX-License-Identifier: Apache-2.0
"""The decisions, pure: the standard library and ``model`` only.

No files, clock, configuration, logging or randomness.
"""
