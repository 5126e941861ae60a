# SPDX-License-Identifier: Apache-2.0
"""The sources of evidence of how local the guests' memory accesses are.

``ladder``    tries the sources in order, and skips one that failed for some ticks
``counted``   ``guests``: counters on each guest's vCPU threads; ``cpus``: counters on each CPU,
              attributed to guests by where they ran
``resctrl``   memory bandwidth monitoring: total traffic and traffic to local memory
``inferred``  ``numa_faults``: the nodes of the pages that threads accessed, by NUMA balancing;
              ``pages``: the nodes of a guest's pages, compared with those where its vCPUs ran
``uncore``    not a source: memory controllers, links and I/O of each node
"""
