# SPDX-License-Identifier: Apache-2.0
"""The kernel's and libvirt's edge: every reader takes its root path as an argument.

The host: topology with kernel_files, huge_pools and node_memory; hugetlb, journal. Guests: guests,
domain_xml, domain_values, domain_memory. Their control groups: cgroups, cpuset, allowed_mems,
writes. Counters: counters, events, event_table, pfm, pmu, perf, rotation. Memory's speed:
memory_probe, caches, hmat. The hook's own files: hook_files, confinement.
"""
