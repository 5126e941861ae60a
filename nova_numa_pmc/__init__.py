# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement of guests for OpenStack Nova and libvirt/KVM, by measured pressure.

doc/source/contributor/architecture.rst describes the layout of the package.
"""
