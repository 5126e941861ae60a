# SPDX-License-Identifier: Apache-2.0
"""Decide which nodes a guest's CPUs and memory are placed on."""
