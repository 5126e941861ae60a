# SPDX-License-Identifier: Apache-2.0
"""Access to the kernel and libvirt; every reader takes the host's root path as an argument."""
