# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement for OpenStack Nova and libvirt/KVM, by measured pressure.

Here: what is shared (model, record, exceptions), the options (settings, conf, counting), the
promises (promises, state, state_format), libvirt's hook (hook, settling, bounded); what is
measured (sample, collect, calibration), how it is kept (recording, sample_columns) and how
shown (pace, tables, screen, summary, plots).
"""
