# SPDX-License-Identifier: Apache-2.0
"""Records are immutable tuples whose values have names, defaults and methods."""

from __future__ import annotations

import unittest
from typing import Any

from nova_numa_pmc.record import Record

#: Type checkers take a record for a NamedTuple.
METACLASS: Any = type(Record)


class Point(Record):
    """A point."""

    x: int | str  # not evaluated, as Python 3.9 could not
    y: object = 0
    z: int | None = None

    def moved(self, x):
        """Return a point elsewhere."""
        return self._replace(x=x)

    @property
    def far(self):
        """Return whether the point is far away."""
        return self.x > 10  # type: ignore[operator]


class RecordTest(unittest.TestCase):
    def test_values_are_given_by_position_by_name_or_by_default(self):
        for point in (Point(1, 2, 3), Point(1, z=3, y=2), Point(z=3, x=1, y=2)):
            self.assertEqual((1, 2, 3), (point.x, point.y, point.z))
        self.assertEqual((1, 0, None), Point(1))
        self.assertEqual((1, 5, None), Point(1, y=5))

    def test_values_that_do_not_fit_the_fields_are_refused(self):
        for values, named, message in (
            ((), {}, 'x$'),
            ((1, 2, 3, 4), {}, '4 given'),
            ((1,), {'x': 2}, 'x$'),
            ((1,), {'w': 2}, 'w$'),
            ((1, 2, 3), {'z': 3}, 'z$'),
        ):
            with self.subTest(values=values, named=named):
                with self.assertRaisesRegex(TypeError, 'Point takes x y z.*' + message):
                    Point(*values, **named)

    def test_a_record_is_immutable_and_compares_as_a_tuple(self):
        point = Point(1, 2, 3)
        with self.assertRaises(AttributeError):
            point.x = 2  # type: ignore[misc]
        with self.assertRaises(AttributeError):
            point.w = 2  # type: ignore[attr-defined]
        self.assertEqual({(1, 2, 3)}, {point, Point(1, 2, 3)})

    def test_annotations_of_a_record_that_are_not_text_are_refused(self):
        # Python 3.14 puts a function into the class instead, for code that asks (PEP 649).
        for name in ('__annotate__', '__annotate_func__'):
            with self.assertRaisesRegex(TypeError, 'Lazy: .*from __future__ import annotations'):
                METACLASS('Lazy', (Record,), {name: lambda _: {'x': int}})
