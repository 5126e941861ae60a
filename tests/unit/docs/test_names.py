# SPDX-License-Identifier: Apache-2.0
"""The names of tests are sentences in plain English; no local has a name that its module uses."""

import ast
import re
import symtable
import unittest

from tests.unit.docs.glossary import TESTS, TOP

#: What a name must not contain, and what to write instead.
PATTERNS = (
    (r'(?<!_there)_(is|are|was|were)_no_', 'is_not_a, are_not, does_not'),
    (r'_told(?!_apart)', 'logged, reported, shown, raised'),
    (r'_tells?(_|$)(?!.*apart)', 'reports, shows, contains, names, logs'),
    (r'^test_it_', 'the subject'),
    (r'^test(_[^_]+){1,2}$', 'a sentence with a subject'),
)


def faults(name):
    """Return what to write instead of the parts of a name that are not plain English."""
    return [instead for pattern, instead in PATTERNS if re.search(pattern, name)]


def names():
    """Yield (path, line, name) of each test."""
    for path in sorted(TESTS.rglob('test_*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if node.name.startswith('test_'):
                yield path.relative_to(TESTS.parent), node.lineno, node.name


def shadows(text):
    """Yield the locals with the name of a function, a class or an import of their module.

    What a function imports is left out: its module may import the same for types.
    """
    module = symtable.symtable(text, '', 'exec')
    symbols = module.get_symbols()
    taken = {one.get_name() for one in symbols if one.is_imported() or one.is_namespace()}
    tables = module.get_children()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for one in table.get_symbols() if table.get_type() == 'function' else ():
            if one.is_local() and not one.is_imported() and one.get_name() in taken:
                yield f'{table.get_lineno()}: {one.get_name()}'


class NamesTest(unittest.TestCase):
    def test_a_local_that_shadows_a_name_of_its_module_is_found(self):
        text = 'import a\ndef b(a): b = 1\ndef c():\n import a\nclass D:\n def a(self): pass'
        self.assertEqual(['2: a', '2: b'], sorted(shadows(text)))

    def test_no_local_shadows_a_name_of_its_module(self):
        found = [
            f'{path.relative_to(TOP)}:{shadow}'
            for path in sorted((TOP / 'nova_numa_pmc').rglob('*.py'))
            for shadow in shadows(path.read_text(encoding='utf-8'))
        ]
        self.assertEqual([], found)

    def test_each_fault_of_a_name_is_found(self):
        for name, count in (
            ('test_a_missing_file_is_no_problem', 1),
            ('test_without_a_file_there_is_no_override', 0),
            ('test_a_socket_that_cannot_be_removed_is_told', 1),
            ('test_many_fields_of_a_record_are_told_apart', 0),
            ('test_the_page_tells_what_was_found', 1),
            ('test_the_page_names_what_two_sources_tell', 1),
            ('test_a_table_that_tells_sockets_apart_stays', 0),
            ('test_it_spans', 2),
            ('test_spans', 1),
            ('test_a_guest_larger_than_a_node_spans_two', 0),
        ):
            with self.subTest(name):
                self.assertEqual(count, len(faults(name)))

    def test_names_of_tests_are_sentences_in_plain_english(self):
        found = [
            f'{path}:{line}: {name}: write {instead}'
            for path, line, name in names()
            for instead in faults(name)
        ]
        self.assertEqual([], found)
