# SPDX-License-Identifier: Apache-2.0
"""Write samples to recordings, and replay recordings or the output of ``perf stat``."""
