# SPDX-License-Identifier: Apache-2.0
"""A simulated region in a closed loop, in which ways of choosing hosts are compared.

Guests come, are given hosts by a policy, want CPU and memory, are measured by their hosts'
agents, and what is measured is what the policy sees at the next request. ``make arena`` runs
it; ``doc/source/reference/arena.rst`` says what it models, what it does not, how to read it.

What lives where, from the parts that know nothing of the others to those that use them:

``parameters.py``  every figure, each with its source or "assumed"; its hash is in the result
``hosts.py``       shapes of hosts: cores, memory, distances; which have no agent, which lie
``recorded.py``    guests of a recorded trace, from a CSV file
``loads.py``       a trace: which guests come and leave when, how large, what they want over time
``losses.py``      what guests lose, by two models that share no code
``fleet.py``       a region's state in arrays: promises, figures of the agents, what Nova sees
``inside/``        which nodes of a host a guest is given: one function for each way
``policies/``      which host: one function for each, columns of hosts in, scores out
``region.py``      the loop: events, scheduler workers with stale views, claims, measurements
``cells.py``       shape × load × what load follows, and what is swept
``statistics.py``  paired ratios with their intervals, duels, the figures of the last line
``sweeps.py``      what is told of cells in which one thing is swept
``tuning.py``      the policies' own settings, and what is told of them
``ways.py``        what is told of ways inside of hosts, with the host's choice fixed
``large.py``       a region so large that Placement does not offer all of its hosts
``fits.py``        the figures that parameters.py takes from recorded traces, run by hand
``replicas.py``    small regions that repeat what was measured: bench-crowded, the stack
``validity.py``    what these say, compared with what was measured or published
``sampling.py``    decisions of a run, kept for the referee
``referee.py``     the same decisions by Nova's own handler and our real weigher
``__main__.py``    the command

To add a policy: a function in ``policies/``, listed in ``policies/__init__.py``. To add a cell:
``cells.py``. To add a way to place inside of a host: a function in ``inside/``, listed in
``inside/__init__.py``.
"""
