# SPDX-License-Identifier: Apache-2.0
"""Records are immutable tuples whose values have names, defaults and methods."""

from __future__ import annotations

import copy
import pickle
import typing
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

    def test_make_takes_the_values_in_order_unchecked(self):
        point = Point._make((1, 2, 3))
        self.assertIs(Point, type(point))
        self.assertEqual((1, 2, 3), (point.x, point.y, point.z))

    def test_replace_leaves_the_original_record(self):
        point = Point(1)
        self.assertEqual((1, 7, None), point._replace(y=7))
        self.assertEqual((1, 0, None), point)
        self.assertRaises(TypeError, point._replace, w=1)

    def test_a_record_shows_its_fields_and_defaults_by_name(self):
        self.assertEqual(('x', 'y', 'z'), Point._fields)
        self.assertEqual({'y': 0, 'z': None}, Point._field_defaults)
        self.assertEqual({'x': 1, 'y': 0, 'z': None}, Point(1)._asdict())
        self.assertEqual("Point(x='a', y=0, z=None)", repr(Point('a')))

    def test_copies_of_a_record_are_equal_and_of_its_class(self):
        point = Point(1, (2,), 3)
        for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
            self.assertEqual((Point, point), (type(other), other))

    def test_a_record_may_have_methods_and_properties(self):
        self.assertEqual(
            (Point(12), False, True), (Point(1).moved(12), Point(1).far, Point(12).far)
        )
        self.assertEqual('A point.', Point.__doc__)

    def test_types_of_a_record_are_for_type_checkers_only(self):
        # Hypothesis would fill fields that a strategy leaves at their defaults.
        self.assertEqual({}, typing.get_type_hints(Point))

    def test_many_fields_of_a_record_are_told_apart(self):
        names = [f'field_{number}' for number in range(40)]
        wide = METACLASS('Wide', (Record,), {'__annotations__': dict.fromkeys(names, 'int')})
        self.assertEqual(dict(zip(names, range(40))), wide(*range(40))._asdict())
        self.assertEqual(39, wide(*range(40)).field_39)

    def test_a_class_of_a_record_has_its_fields(self):
        class Named(Point):
            def __str__(self):
                return 'at %s' % self.x

        self.assertEqual(('at 3', (3, 0, None)), (str(Named(3)), Named(3)))
        self.assertFalse(hasattr(Named(3), '__dict__'))

    def test_annotations_of_a_record_that_are_not_text_are_refused(self):
        # Python 3.14 puts a function into the class instead, for code that asks (PEP 649).
        for name in ('__annotate__', '__annotate_func__'):
            with self.assertRaisesRegex(TypeError, 'Lazy: .*from __future__ import annotations'):
                METACLASS('Lazy', (Record,), {name: lambda _: {'x': int}})
