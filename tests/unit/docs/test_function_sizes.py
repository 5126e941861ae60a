# SPDX-License-Identifier: Apache-2.0
"""No function is longer than 40 lines without a reason."""

import ast
import unittest

from tests.fixtures.checkout import TOP

PACKAGE = TOP / 'nova_numa_pmc'
LINES_MAX = 40
OPTIONS = 'one option after the other, with its help'
#: The functions that are longer, with the reasons.
LONGER = {
    'cli/commands/explain.py configure': OPTIONS,
    'compute/metrics_decoder.py _decode': 'runs for each host of a request: calls cost much',
}


def body_lines(function):
    """Return the number of a function's lines without its signature and docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def functions(text):
    """Yield every function of a module, nested ones and methods as well."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


class FunctionSizesTest(unittest.TestCase):
    def test_a_long_function_has_a_reason(self):
        longer = {
            f'{path.relative_to(PACKAGE)} {function.name}'
            for path in PACKAGE.rglob('*.py')
            for function in functions(path.read_text(encoding='utf-8'))
            if body_lines(function) > LINES_MAX
        }
        self.assertEqual(set(LONGER), longer)

    def test_the_size_of_a_function_is_without_signature_and_docstring(self):
        lines = (
            'def f(',
            '    a,',
            '):',
            '    "Return\\n it."',
            '    b = (',
            '        a',
            '    )',
            '    return b',
        )
        (function,) = functions('\n'.join(lines))
        self.assertEqual(4, body_lines(function))
