# SPDX-License-Identifier: Apache-2.0
"""Test the requirements of the phase with a loaded node, on a fake stack."""

import types
import unittest

from tests.stack import pressure
from tests.stack.session import RequirementError


class Host:
    def __init__(self):
        self.commands = []

    def run(self, command):
        self.commands.append(command)

    def cpus_of(self, node):
        return ('0-1', '2-3')[node]


class Session:
    """A stack whose hook puts two guests on these nodes and reports it.

    :ivar waited: whether these demands of nodes 0 and 1 would suffice while the load is there
    """

    def __init__(
        self, nodes, evidence='based on the pressure measured 3 s ago', with_package=True
    ):
        self.nodes, self.evidence, self.with_package = nodes, evidence, with_package
        self.hosts, self.servers, self.waited = {'cmp1': Host()}, {}, []

    def wait_until_quiet(self):
        pass

    def wait_until_demand(self, name, fits, what):
        self.waited.append([fits([0.5, 0.2]), fits([0.5, 0.45]), fits([0.2, 0.5])])

    def boot(self, name, availability_zone):
        self.servers[name] = types.SimpleNamespace(id=name)

    def delete(self, name):
        pass

    def places_of(self, *names):
        at = dict(zip(self.servers, self.nodes))
        return {
            name: {
                'host': 'cmp1',
                'node': at[name],
                'share': 1.0,
                'ticks': {at[name]: 1},
                'cpus': [self.hosts['cmp1'].cpus_of(at[name])],
            }
            for name in names
        }

    def promises(self):
        return {
            'cmp1': {
                name: {'origin': 'placed', 'cpu_nodes': [place['node']]}
                for name, place in self.places_of(*self.servers).items()
            }
        }

    def journals(self):
        return {
            'cmp1': [
                {'message': f'guest {name}: start: node {node}: fits; {self.evidence}'}
                for name, node in zip(self.servers, self.nodes)
            ]
        }


class LoadedNodeTest(unittest.TestCase):
    def test_both_guests_on_the_other_node_pass(self):
        session, entry = Session((1, 1)), {}
        pressure.check_loaded_node(session, entry)
        self.assertEqual([[True, False, False]], session.waited)
        self.assertEqual(2, len(entry['logged']))
        started, ended = session.hosts['cmp1'].commands
        self.assertIn('for cpu in 0 1;', started)
        self.assertIn('systemctl stop', ended)

    def test_one_guest_on_each_node_is_a_failure_and_the_load_ends(self):
        session = Session((0, 1))
        with self.assertRaisesRegex(RequirementError, 'node 0'):
            pressure.check_loaded_node(session, {})
        self.assertIn('systemctl stop', session.hosts['cmp1'].commands[-1])

    def test_a_decision_based_on_promises_alone_is_a_failure(self):
        with self.assertRaisesRegex(RequirementError, 'promises alone'):
            pressure.check_loaded_node(
                Session((1, 1), 'based on promises alone: the publication is 95 s old'), {}
            )

    def test_without_our_package_guests_may_go_anywhere(self):
        session, entry = Session((0, 1), with_package=False), {}
        pressure.check_loaded_node(session, entry)
        self.assertEqual(2, len(entry['places']))
