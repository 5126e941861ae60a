# SPDX-License-Identifier: Apache-2.0
"""The kernel's and libvirt's edge: every reader takes its root path as an argument."""
