# SPDX-License-Identifier: Apache-2.0
"""What the commands that show samples share: top, record, report, calibrate, explain.

pace takes samples in time, summary sums them up, tables lays them out, screen and plots draw.
"""
