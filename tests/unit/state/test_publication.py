# SPDX-License-Identifier: Apache-2.0
"""The publication is written atomically, and read although its writer is newer."""

import json
import os
import stat
import tempfile
import unittest

from hypothesis import given, settings, strategies as st

from nova_numa_pmc import model
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.model import NodeLoad, PoolLoad
from nova_numa_pmc.state import publication
from nova_numa_pmc.state.publication import Publication
from tests.fixtures.model_records import node_view, view_of_nodes

STATE = Publication(
    1700000000.5,
    10.0,
    view_of_nodes(
        node_view(0, 4, promised=5, guests=1.5, vcpus=3, demand_cores=0.5, demand_now_cores=0.25),
        node_view(
            2,
            0,
            link_ratio=0.25,
            bandwidth_bytes_per_sec=1e9,
            bandwidth_max_bytes_per_sec=2e9,
            remote_ratio=0.25,
        ),
        rotation=3,
    ),
    'counters',
    'nova.conf',
    model.DemandHistory(7, 2.5),
    ('0b0b1b8e-3a4c-4a0e-9d55-0c2f6f0a7d11', 'f3d1c1a2-5b6e-4f7a-8c9d-1e2f3a4b5c6d'),
    '6a7b0e4c-0000-4000-8000-000000000001',
    5 * 10**9,
    (
        PoolLoad(
            frozenset({0, 1, 8}),
            ((0, NodeLoad(24.25, 31 * 10**9, 10**11, 0.125)), (2, NodeLoad())),
            ((0, 7.25), (2, 0.0)),
        ),
        PoolLoad(frozenset({3}), ((0, NodeLoad(0.5, stolen_cores=0.25)),), ((0, 1.0),)),
    ),
)


def changed(**members):
    """Return the file's bytes with members of the object changed."""
    return json.dumps({**json.loads(publication.encode(STATE)), **members}).encode()


def view_changed(**members):
    """Return them with members of the view changed."""
    return changed(view={**json.loads(publication.encode(STATE))['view'], **members})


def node_changed(**members):
    """Return them with members of the first node changed."""
    nodes = json.loads(publication.encode(STATE))['view']['nodes']
    nodes[0].update(members)
    return view_changed(nodes=nodes)


class FreshnessTest(unittest.TestCase):
    def test_a_publication_is_stale_after_three_intervals(self):
        for interval_s, age_s, wanted in (
            (5, 0, publication.FRESH),
            (5, 30, publication.FRESH),
            (5, 31, publication.STALE),
            (60, 180, publication.FRESH),
            (60, 181, publication.STALE),
            (10**9, 1800, publication.FRESH),
            (10**9, 1801, publication.STALE),
            (5, -30, publication.FRESH),
            (5, -31, publication.FUTURE),
        ):
            with self.subTest(interval_s=interval_s, age_s=age_s):
                published = STATE._replace(interval_s=interval_s)
                self.assertEqual(
                    wanted, publication.freshness(published, published.taken_s + age_s)
                )


class CodecTest(unittest.TestCase):
    def test_a_publication_is_decoded_as_encoded(self):
        self.assertEqual(STATE, publication.decode(publication.encode(STATE)))

    def test_an_unmeasured_node_is_unknown_and_not_idle(self):
        decoded = publication.decode(publication.encode(STATE))
        self.assertEqual((2, model.NodeLoad()), decoded.pools[0].loads[1])

    @settings(max_examples=200)
    @given(st.data())
    def test_a_damaged_byte_is_refused_or_harmless(self, data):
        whole = bytearray(publication.encode(STATE))
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        try:
            self.assertIsInstance(publication.decode(bytes(whole)), Publication)
        except StateError:
            pass

    def test_a_damaged_publication_is_refused(self):
        whole = publication.encode(STATE)
        for name, data in {
            'empty': b'',
            'cut short': whole[:-9],
            'not JSON': b'\xff\x00',
            'no nodes': view_changed(nodes=[]),
            'a node twice': view_changed(nodes=json.loads(whole)['view']['nodes'][:1] * 2),
            'a huge amount': node_changed(promised_bytes=2**61),
            'remote beyond all': node_changed(remote_ratio=1.5),
            'a domain too few': view_changed(domains=[0]),
            'a row too few': view_changed(distances=[[10, 20]]),
            'a row too short': view_changed(distances=[[10], [20]]),
            'a load without its node': changed(
                pools=[{'cpus': [0], 'loads': [[{}]], 'vcpus': []}]
            ),
        }.items():
            with self.subTest(name), self.assertRaises(StateError):
                publication.decode(data)


class FileTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = os.path.join(scratch.name, 'state')
        self.path = os.path.join(self.directory, publication.FILE)

    def test_a_publication_is_read_as_it_was_written(self):
        publication.write(self.directory, STATE)
        publication.write(self.directory, STATE._replace(taken_s=7))
        self.assertEqual(7, publication.read(self.directory).taken_s)
        self.assertEqual([publication.FILE], os.listdir(self.directory))

    def test_every_user_may_read_a_publication_whatever_the_umask(self):
        self.addCleanup(os.umask, os.umask(0o077))
        publication.write(self.directory, STATE)
        self.assertEqual(0o644, stat.S_IMODE(os.stat(self.path).st_mode))
        self.assertEqual(0o755, stat.S_IMODE(os.stat(self.directory).st_mode))

    def test_a_missing_file_is_no_fault_for_the_hook(self):
        self.assertIsNone(publication.read_optional(self.directory))
        self.assertEqual(
            ('promises alone: the agent has published nothing', ()),
            publication.read_evidence(self.directory, 'b', 0, frozenset(), False)[::3],
        )

    def test_a_file_that_others_may_write_is_refused(self):
        publication.write(self.directory, STATE)
        os.chmod(self.path, 0o666)
        with self.assertRaisesRegex(StateError, 'users other than root'):
            publication.read(self.directory)

    def test_a_path_that_is_not_a_regular_file_is_refused_without_waiting(self):
        for make in (os.mkfifo, os.mkdir, lambda path: os.symlink('/dev/zero', path)):
            publication.write(self.directory, STATE)
            os.unlink(self.path)
            make(self.path)
            with self.assertRaises(StateError):
                publication.read(self.directory)
            (os.rmdir if make is os.mkdir else os.unlink)(self.path)

    def test_a_file_too_long_is_refused(self):
        publication.write(self.directory, STATE)
        os.truncate(self.path, 9 << 20)
        with self.assertRaisesRegex(StateError, 'at most'):
            publication.read(self.directory)
