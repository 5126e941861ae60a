# SPDX-License-Identifier: Apache-2.0
"""A value from JSON is taken as it is or refused with a short reason that names it."""

import math
import unittest

from hypothesis import given, strategies as st

from nova_numa_pmc import json_values

#: Any value that json.loads can return.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
BOUND = st.integers(0, 9)


class CheckedTest(unittest.TestCase):
    def refused(self, function, values, *arguments):
        for value in values:
            with self.subTest(value=value), self.assertRaises(ValueError) as caught:
                function(value, *arguments)
            self.assertLess(len(str(caught.exception)), 120)

    def test_exact_takes_a_value_of_exactly_that_type(self):
        self.assertIs(True, json_values.of_type(bool, True))
        self.assertEqual('a', json_values.of_type(str, 'a'))
        for kind, value in ((int, True), (int, 1.0), (float, 1), (str, None), (list, ())):
            with self.subTest(value=value), self.assertRaises(ValueError):
                json_values.of_type(kind, value)

    def test_number_takes_finite_numbers_from_0_on(self):
        for value in (0, 0.5, 1, json_values.NUMBER_MAX):
            self.assertIs(value, json_values.number(value))
        self.assertIs(int, type(json_values.number(1)))
        self.refused(
            json_values.number, (-1, math.nan, math.inf, -math.inf, 10**400, True, None, '1', [1])
        )

    def test_number_takes_a_number_in_bounds(self):
        for value in (-2, 3.5):
            self.assertEqual(value, json_values.number(value, 3.5, -2))
        self.refused(json_values.number, (-2.5, 3.6, math.nan, -math.inf), 3.5, -2)

    def test_integer_takes_an_integer_in_bounds(self):
        for value in (0, 7):
            self.assertEqual(value, json_values.integer(value, 7))
        self.refused(json_values.integer, (-1, 8, 1.0, True, None, '1', math.nan), 7)

    def test_text_takes_printable_text_in_bounds(self):
        for value in ('', 'guest-1', 'a name', 'é' * 7):
            self.assertEqual(value, json_values.text(value, 7))
        self.refused(json_values.text, ('a' * 8, 'a\n', '\0', b'a', None, 1), 7)

    def test_one_of_takes_one_of_the_known_texts(self):
        self.assertEqual('done', json_values.one_of('done', ('begun', 'done')))
        self.refused(json_values.one_of, ('', 'don', 1, None, ['done']), ('begun', 'done'))

    def test_sequence_takes_a_list_of_a_length_in_bounds(self):
        self.assertEqual([1, None], json_values.sequence([1, None], 2))
        self.assertEqual([], json_values.sequence([], 2))
        self.refused(json_values.sequence, ([1, 2, 3], (1,), {}, 'ab', None), 2)
        self.refused(json_values.sequence, ([], [1], [1, 2, 3]), 2, 2)

    def test_mapping_takes_an_object_of_few_members(self):
        self.assertEqual({'a': 1}, json_values.mapping({'a': 1}, 1))
        self.refused(json_values.mapping, ({'a': 1, 'b': 2}, [], None), 1)

    def test_a_reason_shows_only_the_beginning_of_a_long_value(self):
        with self.assertRaisesRegex(ValueError, "^'a{39} is not a number from 0 to 9$"):
            json_values.number('a' * 5000, 9)


class MembersTest(unittest.TestCase):
    def setUp(self):
        self.members = json_values.Members(
            {'cores': 1.5, 'id': 3, 'name': 'a', 'nodes': [1, 2], 'unknown': None}
        )

    def test_members_are_checked_as_they_are_taken(self):
        self.assertEqual(1.5, self.members.number('cores'))
        self.assertEqual(3, self.members.integer('id'))
        self.assertEqual('a', self.members.text('name', 5))
        self.assertEqual([1, 2], self.members.sequence('nodes', 2))
        self.assertIsNone(self.members.get('unknown'))

    def test_a_member_that_may_be_unknown_may_be_null_or_absent(self):
        self.assertIsNone(self.members.number('unknown', None))
        self.assertIsNone(self.members.number('absent', None))
        self.assertEqual(1.5, self.members.number('cores', None))

    def test_an_absent_member_has_its_default_or_is_an_error(self):
        self.assertEqual(7, self.members.integer('absent', 7))
        self.assertEqual('', self.members.text('absent', 5, ''))
        self.assertEqual((), self.members.sequence('absent', 5, ()))
        with self.assertRaisesRegex(ValueError, '^missing member absent$'):
            self.members.number('absent')

    def test_the_reason_names_the_member(self):
        for name, take in (
            ('unknown', self.members.number),
            ('cores', self.members.integer),
            ('id', lambda name: self.members.text(name, 5)),
            ('name', lambda name: self.members.sequence(name, 5)),
        ):
            with self.subTest(name), self.assertRaisesRegex(ValueError, '^%s: ' % name):
                take(name)

    def test_a_member_above_its_maximum_is_refused(self):
        with self.assertRaisesRegex(ValueError, '^cores: 1.5 is not a number from 0 to 1$'):
            self.members.number('cores', maximum=1)
        with self.assertRaisesRegex(ValueError, '^id: '):
            json_values.Members({'id': 2**60 + 1}).integer('id')
        with self.assertRaisesRegex(ValueError, '^cores: '):
            json_values.Members({'cores': 2.0**61}).number('cores')

    def test_members_of_what_is_not_an_object_are_refused(self):
        for value in ([], None, 'a', 1):
            with self.subTest(value=value), self.assertRaisesRegex(ValueError, 'is not an object'):
                json_values.Members(value)


class PropertyTest(unittest.TestCase):
    def taken(self, function, *arguments):
        """Return what a check returns, or None if it refused the value with a short message."""
        try:
            result = function(*arguments)
        except ValueError as error:
            self.assertLess(len(str(error)), 120)
            return None
        self.assertIs(arguments[0], result)
        return (result,)

    @given(ANYTHING, BOUND)
    def test_a_value_is_taken_as_it_is_or_refused(self, value, bound):
        kind = type(value)
        is_number = kind in (int, float) and 0 <= value <= bound
        for function, good in (
            (json_values.number, is_number),
            (json_values.integer, is_number and kind is int),
            (json_values.text, kind is str and len(value) <= bound and value.isprintable()),
            (json_values.sequence, kind is list and len(value) <= bound),
            (json_values.mapping, kind is dict and len(value) <= bound),
        ):
            taken = self.taken(function, value, bound) is not None
            self.assertEqual(good, taken, function.__name__)

    @given(st.dictionaries(st.sampled_from('abc'), ANYTHING), st.sampled_from('abc'), BOUND)
    def test_a_member_is_checked_as_its_value_alone(self, values, name, most):
        members = json_values.Members(values)
        for take, function in (
            (
                lambda name: members.number(name, maximum=most),
                lambda value: json_values.number(value, most),
            ),
            (members.integer, lambda value: json_values.integer(value, json_values.MEMBER_MAX)),
            (lambda name: members.text(name, most), lambda value: json_values.text(value, most)),
            (
                lambda name: members.sequence(name, most),
                lambda value: json_values.sequence(value, most),
            ),
        ):
            try:
                expected = function(values[name])
            except KeyError:
                words = 'missing member %s' % name
            except ValueError as error:
                words = '%s: %s' % (name, error)
            else:
                self.assertIs(expected, take(name))
                continue
            with self.assertRaises(ValueError) as caught:
                take(name)
            self.assertEqual(words, str(caught.exception))
