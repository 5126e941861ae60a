# SPDX-License-Identifier: Apache-2.0
"""Samples in files: recording keeps them (as columns), replay reads them and perf_stat's."""
