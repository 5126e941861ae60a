# SPDX-License-Identifier: Apache-2.0
"""A record is read as it was written, or refused with a short reason that names the member."""

from __future__ import annotations

import json
import math
import unittest
from typing import TYPE_CHECKING

from hypothesis import given, strategies as st

from nova_numa_pmc import json_values
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.json_values import Share, Signed

#: Any value that json.loads can return.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
AMOUNTS = st.floats(0, 1e30)


class Inner(Record):
    node: int
    share: Share | None = None


class Outer(Record):
    name: str
    amount: float
    change: Signed = 0.0
    known: bool = False
    cpus: frozenset[int] = frozenset()
    rows: tuple[tuple[float, ...], ...] = ()
    pairs: tuple[tuple[int, float | None], ...] | None = None
    inner: Inner | None = None
    more: tuple[tuple[str, Inner], ...] = ()


INNERS = st.builds(Inner, st.integers(0, 2**60), st.none() | st.floats(0, 1))
OUTERS = st.builds(
    Outer,
    st.text(max_size=9),
    AMOUNTS,
    st.floats(-1e30, 1e30),
    st.booleans(),
    st.frozensets(st.integers(0, 300)),
    st.lists(st.lists(AMOUNTS, max_size=3).map(tuple), max_size=3).map(tuple),
    st.none() | st.lists(st.tuples(st.integers(0, 9), st.none() | AMOUNTS)).map(tuple),
    st.none() | INNERS,
    st.lists(st.tuples(st.text(max_size=3), INNERS), max_size=3).map(tuple),
)
WHOLE = Outer('a', 1.5, inner=Inner(3, 0.5))


def read(**members):
    """Return the record that :data:`WHOLE` becomes with other members."""
    return json_values.from_json(Outer, {**json_values.to_json(WHOLE), **members})


class RecordTest(unittest.TestCase):
    @given(OUTERS)
    def test_a_record_is_decoded_as_encoded(self, record):
        data = json_values.encode(record, 3)
        self.assertEqual((1, True), (data.count(b'\n'), data.endswith(b'\n')))
        self.assertEqual(record, json_values.decode(Outer, data, 3))

    def test_members_of_a_newer_writer_are_ignored(self):
        self.assertEqual(WHOLE, read(new=[1], inner={'node': 3, 'share': 0.5, 'new': None}))

    def test_members_that_an_older_writer_lacks_take_their_defaults(self):
        self.assertEqual(Outer('a', 2), json_values.from_json(Outer, {'name': 'a', 'amount': 2}))
        with self.assertRaisesRegex(ValueError, '^missing member amount$'):
            json_values.from_json(Outer, {'name': 'a'})

    @given(st.sampled_from(Outer._fields), ANYTHING)
    def test_a_damaged_member_is_refused_with_a_short_reason_or_read(self, name, value):
        try:
            self.assertIsInstance(read(**{name: value}), Outer)
        except ValueError as error:
            self.assertLess(len(str(error)), 200)


class FileTest(unittest.TestCase):
    def test_any_minor_version_of_the_major_one_is_read(self):
        data = json_values.encode(WHOLE, 2, 7)
        self.assertEqual('2.7', json.loads(data)['schema'])
        self.assertEqual(WHOLE, json_values.decode(Outer, data, 2))
        with self.assertRaisesRegex(ValueError, r'format 2\.x is not supported .* reads 1\.x'):
            json_values.decode(Outer, data, 1)

    @given(OUTERS, st.data())
    def test_a_file_cut_short_anywhere_is_refused(self, record, data):
        whole = json_values.encode(record, 1).rstrip()
        with self.assertRaises(ValueError):
            json_values.decode(Outer, whole[: data.draw(st.integers(0, len(whole) - 1))], 1)

    @given(ANYTHING)
    def test_what_is_no_object_of_ours_is_refused(self, value):
        with self.assertRaises(ValueError):
            json_values.decode(Outer, json.dumps(value).encode(), 1)

    def test_bytes_that_are_no_json_are_refused(self):
        for data in (b'', b'\xff\0', b'[' * 100000, b'{"schema": "1.0"'):
            with self.subTest(data=data[:9]), self.assertRaises(ValueError):
                json_values.decode(Outer, data, 1)

    def test_what_is_not_finite_is_not_written(self):
        with self.assertRaises(ValueError):
            json_values.encode(WHOLE._replace(amount=math.nan), 1)
