# SPDX-License-Identifier: Apache-2.0
"""SECURITY.rst names tests that exist, and what it says of whole packages holds."""

import ast
import re
import unittest

from tests.fixtures.checkout import TOP


class SecurityTest(unittest.TestCase):
    def test_each_test_that_the_security_page_names_exists(self):
        named = set(re.findall(r'``(test_\w+)``', (TOP / 'SECURITY.rst').read_text('utf-8')))
        texts = [path.read_text('utf-8') for path in (TOP / 'tests').rglob('test_*.py')]
        defined = {name for text in texts for name in re.findall(r'def (test_\w+)\(', text)}
        self.assertGreater(len(named), 20)
        self.assertEqual(set(), named - defined)


class PackageTest(unittest.TestCase):
    """What no module of the package does."""

    #: Packages that open network sockets.
    NETWORK = {'asyncio', 'ftplib', 'http', 'requests', 'smtplib', 'socketserver', 'ssl', 'urllib'}
    #: Functions that do.
    FUNCTIONS = {'create_connection', 'create_server', 'start_http_server', 'urlopen'}

    def setUp(self):
        self.nodes = {
            str(path.relative_to(TOP)): list(ast.walk(ast.parse(path.read_text('utf-8'))))
            for path in (TOP / 'nova_numa_pmc').rglob('*.py')
        }

    def test_only_the_command_that_asks_prometheus_can_open_a_network_socket(self):
        del self.nodes['nova_numa_pmc/cli/fleet_input.py']
        for path, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = [alias.name for alias in node.names] + [getattr(node, 'module', '')]
                    tops = {(name or '').partition('.')[0] for name in names}
                    self.assertEqual(set(), self.NETWORK & tops, path)
                elif isinstance(node, ast.Call):
                    name = getattr(node.func, 'attr', None) or getattr(node.func, 'id', '')
                    self.assertNotIn(name, self.FUNCTIONS, path)
                    owner = getattr(getattr(node.func, 'value', None), 'id', '')
                    if name == 'socket' and owner.endswith('socket'):
                        self.assertIn('AF_UNIX', ast.unparse(node.args[0]), path)

    def test_nothing_changes_something_in_libvirt(self):
        texts = {
            path: {node.value for node in nodes if isinstance(node, ast.Constant)}
            for path, nodes in self.nodes.items()
        }
        self.assertEqual([], [path for path, values in texts.items() if 'virsh' in values])
