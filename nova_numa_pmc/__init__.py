# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure.

Here: what is shared (model, record, exceptions), the options (settings, conf), the promises
(promises, state, state_format) and libvirt's hook (hook, settling, bounded).
"""
