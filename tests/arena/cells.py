# SPDX-License-Identifier: Apache-2.0
"""Cells: shape of hosts × load × what load depends on, and cells that sweep one parameter."""

from tests.arena import hosts, parameters as p


class Cell:
    """The conditions of a run.

    :ivar number: seeds its random draws
    :ivar follows: what load depends on: 'allocation', or 'other'
    :ivar visible_factor: of the time until Nova's counts include a claim
    :ivar audits_at_once: all hosts' audits run at the same time
    :ivar day_amplitude, day_spread: how much demand changes with the time of day, and by how much
        guests' days differ [radians]
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
        visible_factor=1.0,
        audits_at_once=False,
        storm=False,
        multi_create=p.MULTI_CREATE,
        days=False,
    ):
        """Store the conditions."""
        self.number, self.shape, self.load, self.follows = number, shape, load, follows
        self.swept, self.workers, self.storm = swept, workers, storm
        self.build_factor, self.multi_create = build_factor, multi_create
        self.visible_factor, self.audits_at_once = visible_factor, audits_at_once
        self.fill_s, self.judged_s, self.hosts = p.FILL_S, p.JUDGED_S, p.HOSTS
        self.day_amplitude, self.day_spread = p.DAY_AMPLITUDE, 0.0
        if days:
            self.shortened(p.DAYS_HOSTS, p.DAYS_FILL_S, p.DAYS_JUDGED_S)
            self.day_amplitude, self.day_spread = p.DAYS_AMPLITUDE, p.DAYS_SPREAD

    @property
    def name(self):
        """Return the cell's name."""
        parts = self.shape, self.load, self.follows, self.swept
        return ' '.join(part for part in parts if part)

    def shortened(self, hosts_count, fill_s, judged_s):
        """Return the cell with fewer hosts and hours."""
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
        'late claims': {'visible_factor': 4.0},
        'audits at once': {'audits_at_once': True},
        'days': {'days': True},
    }
    found += [('equal', 'mixed', 'other', dict(more, swept=name)) for name, more in swept.items()]
    return [
        Cell(number, shape, load, follows, **more)
        for number, (shape, load, follows, more) in enumerate(found)
    ]
