# SPDX-License-Identifier: Apache-2.0
"""The guide describes each finding that the checks can make, and no other."""

import ast
import unittest

from tests.fixtures.checkout import TOP

SOURCES = [
    *TOP.glob('nova_numa_pmc/checks/*.py'),
    TOP / 'nova_numa_pmc/host/nova_conf.py',
    TOP / 'nova_numa_pmc/cli/commands/check.py',
    TOP / 'nova_numa_pmc/cli/commands/hook.py',
]
#: What creates a finding with a code.
MAKERS = ('Finding', 'Rule', '_add')


def codes():
    """Return the codes of all findings that the sources can create."""
    codes_ = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if getattr(node.func, 'id', getattr(node.func, 'attr', '')) in MAKERS:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    codes_.add(first.value)
                elif isinstance(first, ast.BinOp):  # '%s-not-running' % service
                    text = ast.literal_eval(first.left)
                    codes_ |= {text % service for service in ('nova-compute', 'nova-scheduler')}
    return codes_


class DocumentedTest(unittest.TestCase):
    def test_the_guide_has_each_code_of_a_finding_and_no_other(self):
        guide = (TOP / 'doc/source/admin/check.rst').read_text(encoding='utf-8')
        listed = {
            line.split('``')[1] for line in guide.splitlines() if line.startswith('   * - ``')
        }
        self.assertEqual(codes(), listed)
