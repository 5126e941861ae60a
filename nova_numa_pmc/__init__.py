# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure.

What lives where is in doc/source/contributor/architecture.rst.
"""
