# SPDX-License-Identifier: Apache-2.0
"""A simulated region in a closed loop, in which ways of choosing hosts are compared.

Guests arrive, are given hosts by a policy, want CPU and memory, and are measured by their hosts'
agents; the policy sees these measurements at the next request. ``make arena`` runs it;
``doc/source/reference/arena.rst`` describes what it models, what it does not, and how to read it.

The modules, from those that know nothing of the others to those that use them:

``parameters.py``         all figures, each with its source or "assumed"; its hash is in the result
``hosts.py``              shapes of hosts: cores, memory, distances; no agent, wrong figures
``loads.py``              a trace: arrivals and ends of guests, their sizes, their demand over time
``losses.py``             what guests lose, by two models that share no formula
``fleet.py``              a region's state in arrays: promises, the agents' figures, what Nova sees
``inside/``               the nodes of its host that a guest is given: one function for each way
``policies/``             the choice of a host: one function each, from columns of hosts to scores
``region.py``             the loop: events, schedulers with stale views, claims, measurements
``cells.py``              shape × load × what load depends on, and cells with one parameter changed
``statistics.py``         paired ratios with their intervals, duels, the figures of the last line
``inside_comparison.py``  reports on ways within hosts, with a fixed choice of hosts
``sampling.py``           decisions of a run, recorded for the referee
``referee.py``            the same decisions by Nova's own handler and the real weigher
``__main__.py``           the command

To add a policy: a function in ``policies/``, listed in ``policies/__init__.py``. To add a cell:
``cells.py``. To add a way to place guests within a host: a function in ``inside/``, listed in
``inside/__init__.py``.
"""
