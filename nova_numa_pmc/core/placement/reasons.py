# SPDX-License-Identifier: Apache-2.0
"""Codes of the reasons of a placement (:class:`model.Reason`).

The libvirt hook imports this module at every guest start.
"""

from __future__ import annotations

#: Kinds of a place for a guest, which are the codes of a placement's first reason: on one node; on
#: a few; on all, as its policy requires; for its CPUs only, because its memory does not fit.
ON_ONE_NODE, ON_SPAN, ON_ALL_NODES, CPUS_ONLY = 'one_node', 'span', 'spread', 'cpus_only'
#: Codes of reasons for which a guest that may be placed is left alone (:mod:`eligibility` has
#: those for which it may not).
TOO_FEW_CPUS, NO_SINGLE_NODE = 'too_few_cpus', 'no_single_node'
#: Codes of remarks on a place.
NO_NODE_FITS, ONE_NODE_WAITS = 'no_node_fits', 'one_node_waits'
BANDWIDTH_DROPPED, MAY_GROW = 'bandwidth_dropped', 'may_grow'
ONE_L3, L3_CROWDED = 'one_l3', 'l3_crowded'
