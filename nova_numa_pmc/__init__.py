# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure.

Here: what is shared (model, record, exceptions, extra_specs), the options (settings, conf,
counting, agent_options), the promises (promises, bookkeeping, state, state_format) and what
operators say of guests (overrides), libvirt's hook (hook, settling, bounded), what is measured
(sample, collect, calibration) and published (host_state).
"""
