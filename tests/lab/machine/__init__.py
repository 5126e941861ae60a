# SPDX-License-Identifier: Apache-2.0
"""The emulated NUMA machine: its shape, its image, its QEMU process, its guests.

Only the standard library is used, so that ``tests/lab/numalab`` runs before any set-up.
"""
