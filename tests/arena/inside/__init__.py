# SPDX-License-Identifier: Apache-2.0
"""Ways to place a guest within its host: one function each, behind one interface.

A function takes a :class:`tests.arena.fleet.Fleet`, a host and a guest that starts there, and
returns two rows of fractions by node, which each sum to 1: of its CPUs and of its memory. Its
docstring names the owner, the version, the formula and the deviations; "-like" means that the
owner has no such thing for guests. Whether guests are moved later, and by which rule, is up to
:class:`Way`.

None of them models CPUs of another node that a guest may use while its own is crowded (Xen's
soft affinity; our agent widens such guests), the kernel's automatic NUMA balancing, or the cost
of a move.
"""

from tests.arena.inside import nodes, others, ours


class Way:
    """A function, and the way in which guests are moved afterwards.

    :ivar name: of the way
    """

    def __init__(self, name, place, relieve=None):
        """Store the function and the way guests are moved.

        :param relieve: called with the fleet and its running guests every five minutes; if None,
            a guest stays where it started
        """
        self.name, self._place, self._relieve = name, place, relieve

    def __call__(self, fleet, host, guest):
        """Return the parts of a guest that starts; Nova pins a dedicated one in any case."""
        if fleet.trace.dedicated[guest]:
            return nodes.dedicated(fleet, host)
        return self._place(fleet, host, guest)

    def relieve(self, fleet, guests):
        """Let hosts move running guests; return whether any was moved."""
        before = fleet.moves
        if self._relieve is not None:
            self._relieve(fleet, guests)
        return fleet.moves > before


placed = Way('placed', ours.placed, ours.relieve)
still = Way('placed-still', ours.placed)
floating = Way('floating', others.floating)

#: By name. The contender is ``placed``; all others are its rivals.
WAYS = {
    way.name: way
    for way in (
        placed,
        floating,
        Way('numad', others.numad, others.numad_daemon),
        Way('numad-advice', others.numad),
        Way('xen', others.xen),
        Way('incus-balanced', others.incus_balanced),
        Way('katalyst-like', others.katalyst_like),
    )
}
