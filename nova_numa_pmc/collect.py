# SPDX-License-Identifier: Apache-2.0
"""Measure a host: read everything once a tick, difference it with the tick before.

:class:`Sampler` is the one door for ``top``, ``record`` and the agent.
"""

import time

from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import topology
from nova_numa_pmc.sample import NodeSample, Sample


class Sampler:
    """Read a host again and again; each reading is over the time since the one before.

    :param options: :class:`counting.Options`; None: the defaults
    :param root: where proc, sys and run are (tests)
    """

    def __init__(self, options=None, root='/'):
        self._options = options
        self._root = root
        self._before_ns = None

    def sample(self, now_ns=None, taken_s=None):
        """Return what was measured since the last call; all rates of a first one are None.

        It never sleeps and never raises for what can't be read: that is in ``problems``.

        :param now_ns: CLOCK_MONOTONIC; None: now
        :param taken_s: CLOCK_REALTIME [s]; None: now
        :rtype: nova_numa_pmc.sample.Sample
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        taken_s = time.time() if taken_s is None else taken_s
        elapsed_s = 0.0 if self._before_ns is None else (now_ns - self._before_ns) / 1e9
        self._before_ns = now_ns
        try:
            nodes = topology.read(self._root).nodes
        except NumaPmcError as error:
            return Sample(taken_s, elapsed_s, '', problems=(str(error),))
        return Sample(taken_s, elapsed_s, '', tuple(
            NodeSample(node.id, memory_bytes=node.memory_bytes, free_bytes=node.free_bytes)
            for node in nodes))

    def close(self):
        """Close what is open."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
