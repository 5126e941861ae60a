# SPDX-License-Identifier: Apache-2.0
"""Samples in files: write recordings, and replay them or the output of ``perf stat``."""
