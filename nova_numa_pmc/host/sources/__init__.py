# SPDX-License-Identifier: Apache-2.0
"""The sources of evidence of how local the guests' memory accesses are.

``ladder``   tries the sources in order, and skips one that failed for some ticks; ``cpus``:
             counts of CPUs, attributed to guests by where they ran; ``pages``: the nodes of a
             guest's pages, compared with those where its vCPUs ran
``counted``  ``guests``: counters on each guest's vCPU threads; and those on each CPU
``resctrl``  memory bandwidth monitoring: total traffic and traffic to local memory
``uncore``   not a source: memory controllers, links and I/O of each node
"""
