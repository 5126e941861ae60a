# SPDX-License-Identifier: Apache-2.0
"""The names of tests are sentences in plain English, as CONTRIBUTING.rst asks for."""

import ast
import re
import unittest

from tests.unit.docs.glossary import TESTS

#: What a name must not contain, and what to write instead.
PATTERNS = (
    (r'(?<!_there)_(is|are|was|were)_no_', 'is_not_a, are_not, does_not'),
    (r'_told(?!_apart)', 'logged, reported, shown, raised'),
    (r'^test_it_', 'the subject'),
    (r'^test(_[^_]+){1,2}$', 'a sentence with a subject'),
)
#: Tests in services and on emulated hosts that still have such a name. Add none.
EXCEPTIONS = {
    'test_a_saturated_shared_cpu_is_not_told_as_half_used',
    'test_a_sum_of_nothing_known_is_no_idle_host',
    'test_another_kind_of_problem_is_told_too',
    'test_autostart',
    'test_cold_migration',
    'test_evacuation',
    'test_four_nodes',
    'test_guests_live',
    'test_impossible_shapes',
    'test_it_sends_its_calm_load_and_its_guests',
    'test_it_weighs_by_other_metrics_and_by_ours',
    'test_libvirts_commands',
    'test_live_migration',
    'test_many_starts',
    'test_polling_on_dedicated_cpus_is_no_pressure_on_the_shared_ones',
    'test_reaction_times',
    'test_resize',
    'test_resize_reverted',
    'test_simultaneous_starts',
    'test_sizes',
    'test_the_scheduler_is_told_how_long_it_may_take',
    'test_the_unknown_passes_unless_told_otherwise',
    'test_unequal_nodes',
    'test_v1',
}


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


class NamesTest(unittest.TestCase):
    def test_each_fault_of_a_name_is_found(self):
        for name, count in (
            ('test_a_missing_file_is_no_problem', 1),
            ('test_without_a_file_there_is_no_override', 0),
            ('test_a_socket_that_cannot_be_removed_is_told', 1),
            ('test_many_fields_of_a_record_are_told_apart', 0),
            ('test_it_spans', 2),
            ('test_spans', 1),
            ('test_a_guest_larger_than_a_node_spans_two', 0),
        ):
            with self.subTest(name):
                self.assertEqual(count, len(faults(name)))

    def test_names_of_tests_are_sentences_in_plain_english(self):
        found = {}
        for path, line, name in names():
            for instead in faults(name):
                found[name] = f'{path}:{line}: {name}: write {instead}'
        self.assertEqual([], [text for name, text in found.items() if name not in EXCEPTIONS])
        self.assertEqual(EXCEPTIONS, EXCEPTIONS & set(found))
