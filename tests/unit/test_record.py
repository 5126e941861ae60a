# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import unittest

from nova_numa_pmc.record import Record


class Point(Record, fields='x y z', defaults=(0, None)):
    __slots__ = ()


class RecordTest(unittest.TestCase):

    def test_values_by_position_by_name_and_by_default(self):
        for point in (Point(1, 2, 3), Point(1, z=3, y=2), Point(z=3, x=1, y=2)):
            self.assertEqual((1, 2, 3), (point.x, point.y, point.z))
        self.assertEqual((1, 0, None), Point(1))
        self.assertEqual((1, 5, None), Point(1, y=5))

    def test_what_does_not_fit_is_refused(self):
        for values, named, told in (((), {}, 'x$'), ((1, 2, 3, 4), {}, '4 given'),
                                    ((1,), {'x': 2}, 'x$'), ((1,), {'w': 2}, 'w$'),
                                    ((1, 2, 3), {'z': 3}, 'z$')):
            with self.subTest(values=values, named=named):
                with self.assertRaisesRegex(TypeError, 'Point takes x y z.*' + told):
                    Point(*values, **named)

    def test_is_immutable_and_compares_as_a_tuple(self):
        point = Point(1, 2, 3)
        with self.assertRaises(AttributeError):
            point.x = 2
        with self.assertRaises(AttributeError):
            point.w = 2
        self.assertEqual({(1, 2, 3)}, {point, Point(1, 2, 3)})

    def test_replace_leaves_the_original(self):
        point = Point(1)
        self.assertEqual((1, 7, None), point._replace(y=7))
        self.assertEqual((1, 0, None), point)
        self.assertRaises(TypeError, point._replace, w=1)

    def test_names(self):
        self.assertEqual(('x', 'y', 'z'), Point._fields)
        self.assertEqual({'y': 0, 'z': None}, Point._field_defaults)
        self.assertEqual({'x': 1, 'y': 0, 'z': None}, Point(1)._asdict())
        self.assertEqual("Point(x='a', y=0, z=None)", repr(Point('a')))

    def test_copies(self):
        point = Point(1, (2,), 3)
        for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
            self.assertEqual((Point, point), (type(other), other))
