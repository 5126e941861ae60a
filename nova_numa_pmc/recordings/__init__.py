# SPDX-License-Identifier: Apache-2.0
"""Samples in files: recording keeps them, replay reads them and perf stat's."""
