# SPDX-License-Identifier: Apache-2.0
"""The agent's file for the hook is atomic, and tolerates newer writers and damage."""

import os
import tempfile
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.model import NodeLoad, PoolLoad
from nova_numa_pmc.state import pool_loads

BOOT_ID = '6a7b0e4c-0000-4000-8000-000000000001'
PUBLISHED = pool_loads.PoolLoads(
    BOOT_ID,
    5 * 10**9,
    10.5,
    (
        PoolLoad(
            frozenset({0, 1, 8}),
            ((0, NodeLoad(24.25, 31 * 10**9, 10**11, 0.125)), (2, NodeLoad())),
            ((0, 7.25), (2, 0.0)),
        ),
        PoolLoad(frozenset({3}), ((0, NodeLoad(0.5, stolen_cores=0.25)),), ((0, 1.0),)),
    ),
)


def parts(unit, most):
    return st.none() | st.integers(0, most).map(lambda value: value * unit)


loads = st.builds(
    NodeLoad,
    st.none() | st.integers(0, 10**6).map(lambda value: value / 100),
    parts(10**6, 10**6),
    parts(10**6, 10**6),
    st.none() | st.integers(0, 9999).map(lambda value: value / 1000),
    st.none() | st.integers(0, 10**6).map(lambda value: value / 100),
)


class CodecTest(unittest.TestCase):
    def test_loads_of_pools_are_decoded_as_encoded(self):
        self.assertEqual(PUBLISHED, pool_loads.decode(pool_loads.encode(PUBLISHED)))

    @given(st.lists(loads, max_size=5), st.frozensets(st.integers(0, 300)))
    def test_loads_in_whole_units_are_decoded_as_encoded(self, listed, cpus):
        pool = PoolLoad(
            cpus, tuple(enumerate(listed)), tuple((node, node / 4) for node in range(len(listed)))
        )
        published = PUBLISHED._replace(pools=(pool,))
        self.assertEqual(published, pool_loads.decode(pool_loads.encode(published)))

    def test_columns_of_a_newer_writer_are_ignored(self):
        data = pool_loads.encode(PUBLISHED).decode()
        more = data.replace('\t1.2\t', '\t1.7\t').replace('\t10500', '\t10500\tmore')
        more = more.replace('\t725\t-\n', '\t725\t-\tmore\n').replace(
            'end\t5', 'source\tnova.conf\nend\t6'
        )
        self.assertEqual(PUBLISHED, pool_loads.decode(more.encode()))

    def test_demand_expected_of_new_guests_is_decoded_as_encoded(self):
        published = PUBLISHED._replace(history=model.DemandHistory(37, 12.34))
        self.assertEqual(published, pool_loads.decode(pool_loads.encode(published)))

    def test_a_file_of_an_older_writer_contains_no_stolen_cores(self):
        data = (
            pool_loads.encode(PUBLISHED)
            .replace(b'\t1.2\t', b'\t1.0\t')
            .replace(b'\t725\t-\n', b'\t725\n')
            .replace(b'\t25\n', b'\n')
        )
        decoded = pool_loads.decode(data)
        self.assertEqual(
            [None, None],
            [load.stolen_cores for pool in decoded.pools for node, load in pool.loads if not node],
        )

    def test_damaged_loads_of_pools_are_refused(self):
        whole = pool_loads.encode(PUBLISHED)
        for name, data in {
            'empty': b'',
            'cut short': whole[:-9],
            'no text': b'\xff\x00',
            'another file': whole.replace(b'pmc-pools', b'pmc-promises'),
            'a later major version': whole.replace(b'\t1.2\t', b'\t2.0\t'),
            'a node before any pool': whole.replace(b'pool\t0', b'pond\t0', 1),
            'negative': whole.replace(b'\t2425\t', b'\t-5\t'),
            'a fraction': whole.replace(b'\t2425\t', b'\t24.25\t'),
            'beyond any amount': whole.replace(b'\t2425\t', b'\t%d\t' % 2**61),
            'columns missing': whole.replace(b'\t125\t725', b''),
            'no vCPUs': whole.replace(b'\t725', b'\t-'),
            'odd CPUs': whole.replace(b'0-1,8', b'8,0-1'),
        }.items():
            with self.subTest(name), self.assertRaises(StateError):
                pool_loads.decode(data)

    @settings(max_examples=200)
    @given(st.data())
    def test_a_damaged_byte_is_refused_or_harmless(self, data):
        whole = bytearray(pool_loads.encode(PUBLISHED))
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        try:
            self.assertIsInstance(pool_loads.decode(bytes(whole)), pool_loads.PoolLoads)
        except StateError:
            pass


class FileTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = os.path.join(scratch.name, 'state')
        self.path = os.path.join(self.directory, pool_loads.FILE)

    def test_loads_of_pools_are_read_as_they_were_written(self):
        pool_loads.write(self.directory, PUBLISHED)
        pool_loads.write(self.directory, PUBLISHED._replace(taken_ns=7))
        self.assertEqual(7, pool_loads.read(self.directory).taken_ns)
        self.assertEqual([pool_loads.FILE], os.listdir(self.directory))

    def test_without_a_file_there_are_no_loads_of_pools(self):
        self.assertIsNone(pool_loads.read(self.directory))
        os.mkdir(self.directory)
        self.assertIsNone(pool_loads.read(self.directory))

    def test_a_file_that_cannot_be_used_is_named(self):
        pool_loads.write(self.directory, PUBLISHED)
        with open(self.path, 'w') as file:
            file.write('{')
        with self.assertRaisesRegex(StateError, self.path):
            pool_loads.read(self.directory)
        os.chmod(self.path, 0o666)
        with self.assertRaisesRegex(StateError, 'users other than root'):
            pool_loads.read(self.directory)

    def test_loads_of_pools_are_stale_after_three_intervals(self):
        self.assertEqual(
            [30.0, 180.0, 1800.0],
            [pool_loads.stale_after_s(interval_s) for interval_s in (5, 60, 10**9)],
        )

    def test_an_unmeasured_node_is_unknown_and_not_idle(self):
        self.assertEqual(
            model.NodeLoad(), pool_loads.decode(pool_loads.encode(PUBLISHED)).pools[0].loads[1][1]
        )
