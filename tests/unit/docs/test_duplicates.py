# SPDX-License-Identifier: Apache-2.0
"""No ten lines of the package occur twice, except for licences and imports."""

import ast
import collections
import unittest

from tests.fixtures.checkout import TOP

PACKAGE = TOP / 'nova_numa_pmc'
LINES = 10
#: Lines that may occur twice, with the reason.
EXCEPTIONS = {
    'def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:': (
        "each module of Nova's options has the functions that oslo.config and Nova call"
    )
}


def code_lines(text):
    """Return (number, stripped line) of a module's lines, without comments and imports."""
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return [
        (number, line)
        for number, line in lines
        if line and not line.startswith('#') and number not in imports
    ]


def duplicates(texts):
    """Return {places with the same lines: these lines}; a place is (name, line number)."""
    places = collections.defaultdict(list)
    for name, text in texts.items():
        lines = code_lines(text)
        for at in range(len(lines) - LINES + 1):
            window = tuple(line for _, line in lines[at : at + LINES])
            places[window].append((name, lines[at][0]))
    return {tuple(found): window for window, found in places.items() if len(found) > 1}


class DuplicatesTest(unittest.TestCase):
    def test_no_ten_lines_of_the_package_occur_twice(self):
        texts = {
            str(path.relative_to(TOP)): path.read_text(encoding='utf-8')
            for path in sorted(PACKAGE.rglob('*.py'))
        }
        self.assertEqual(
            {},
            {
                places: window
                for places, window in duplicates(texts).items()
                if not EXCEPTIONS.keys() & set(window)
            },
        )

    def test_lines_are_compared_without_indentation_comments_and_imports(self):
        body = [f'a{number} = {number}' for number in range(LINES)]
        left = 'import os\n' + '\n'.join(body)
        right = 'def f():\n' + ''.join(f'    {line}\n    # why\n' for line in body)
        self.assertEqual(
            [(('left', 2), ('right', 2))], list(duplicates(dict(left=left, right=right)))
        )
        self.assertEqual({}, duplicates({'left': left, 'right': '\n'.join(body[1:])}))
