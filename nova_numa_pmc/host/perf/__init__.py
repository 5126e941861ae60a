# SPDX-License-Identifier: Apache-2.0
"""Hardware counters: the events that a CPU has, opened and read by perf_event_open(2)."""
