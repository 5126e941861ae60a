# SPDX-License-Identifier: Apache-2.0
"""Cells: shape of hosts × load × what load follows, and cells in which one thing is swept."""

from tests.arena import hosts, parameters as p


class Cell:
    """Conditions of a run.

    :ivar number: seeds its draws
    :ivar follows: what load follows: 'allocation', or 'other'
    :ivar want_factor, burst_factor, build_factor: for sensitivity, 1: as it is
    """

    def __init__(
        self,
        number,
        shape,
        load,
        follows,
        swept='',
        workers=p.WORKERS,
        build_factor=1.0,
        storm=False,
        multi_create=p.MULTI_CREATE,
    ):
        """Take the conditions."""
        self.number, self.shape, self.load, self.follows = number, shape, load, follows
        self.swept, self.workers, self.storm = swept, workers, storm
        self.build_factor, self.multi_create = build_factor, multi_create
        self.want_factor = self.burst_factor = 1.0
        self.fill_s, self.judged_s, self.hosts = p.FILL_S, p.JUDGED_S, p.HOSTS

    @property
    def name(self):
        """Return its name."""
        parts = self.shape, self.load, self.follows, self.swept
        return ' '.join(part for part in parts if part)

    def shortened(self, hosts_count, fill_s, judged_s):
        """Return it with fewer hosts and hours."""
        self.hosts, self.fill_s, self.judged_s = hosts_count, fill_s, judged_s
        return self


def cells():
    """Return all cells of the table."""
    found: list[tuple[str, str, str, dict]] = [
        (shape, load, follows, {})
        for shape in hosts.SHAPES
        for load in p.LOADS
        for follows in p.SIGMA
    ]
    swept: dict[str, dict] = {
        'storm': {'storm': True},
        'long builds': {'build_factor': 4.0},
        'one worker': {'workers': 1},
        'sixteen workers': {'workers': 16},
        'many at once': {'multi_create': 0.3},
    }
    found += [('equal', 'mixed', 'other', dict(more, swept=name)) for name, more in swept.items()]
    return [
        Cell(number, shape, load, follows, **more)
        for number, (shape, load, follows, more) in enumerate(found)
    ]
