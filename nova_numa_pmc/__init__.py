# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure.

Here: what is shared (model, record, exceptions, extra_specs), the options (settings, conf,
counting), the promises (promises, state, state_format, preview), libvirt's hook (hook, settling,
bounded), what is measured (sample, collect, calibration) and published (host_state).
"""
