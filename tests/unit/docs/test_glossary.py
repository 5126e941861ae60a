# SPDX-License-Identifier: Apache-2.0
"""The glossary defines each term once, and no name uses a word that it excludes."""

import collections
import unittest

from tests.unit.docs import glossary

TERMS = glossary.terms(glossary.PAGE.read_text(encoding='utf-8'))

#: Names that are defined elsewhere, with the reasons.
EXCEPTIONS = {
    '_load_alternative_sources': "oslo.config's method, overridden",
    '_process_vm_readv': 'the system call',
}
_RESOURCES = "Nova's word for taking a host's resources"
_VCPU_SPEED = (
    "the instructions per second of the lab's vCPUs, in its commands and its emulator too"
)
_PHASES = 'what a stack or a demo goes through, in its commands and documents too'
_TABLE = "Nova's table compute_nodes, or a row of it"
_LIBVIRT = "libvirt-python's name"
TEST_EXCEPTIONS = {
    'CLAIMS': _RESOURCES,
    'PACE': _VCPU_SPEED,
    'PROCESSOR': "proc(5)'s name of the field",
    'VIR_DOMAIN_EVENT_ID_TUNABLE': _LIBVIRT,
    '_PACE_OFFSET': _VCPU_SPEED,
    '_scenario': _PHASES,
    'callback': _LIBVIRT,
    'claim': _RESOURCES,
    'claims': _RESOURCES,
    'compute_node': _TABLE,
    'compute_node_row': _TABLE,
    'compute_nodes': _TABLE,
    'hypervisor_hostname': _TABLE,
    'hypothesis_settings': "hypothesis's name",
    'pace': _VCPU_SPEED,
    'pace_per_sec': _VCPU_SPEED,
    'registerCloseCallback': _LIBVIRT,
    'scenario': _PHASES,
    'set_pace': _VCPU_SPEED,
    'test_scenario': _PHASES,
    'vm': "the lab's machine, which is a host to the package",
}

PAGE = """\
=====
Words
=====

.. glossary::

   huge page
      A page of 2 MiB
      or 1 GiB.

      :from: Linux (``hugetlb``)
      :not: large page, superpage

   vCPU
      A CPU of a guest.

      :from: libvirt

Next
====

   not a term
"""


class ReadingTest(unittest.TestCase):
    def test_terms_are_read_from_a_page(self):
        self.assertEqual(
            [
                (
                    'huge page',
                    'A page of 2 MiB or 1 GiB.',
                    'Linux (``hugetlb``)',
                    ('large page', 'superpage'),
                ),
                ('vCPU', 'A CPU of a guest.', 'libvirt', ()),
            ],
            [tuple(term) for term in glossary.terms(PAGE)],
        )

    def test_names_are_split_into_words(self):
        for name, expected in (
            ('HTTPServer', ['http', 'server']),
            ('cpu_mask', ['cpu', 'mask']),
            ('_MAX_BYTES', ['max', 'bytes']),
            ('vcpu0', ['vcpu', '0']),
        ):
            with self.subTest(name):
                self.assertEqual(expected, glossary.words(name))

    def test_a_phrase_is_found_in_names_as_whole_words(self):
        for name in ('cpu_mask', 'CpuMask', 'CPU_MASKS', 'old_cpu_mask_of'):
            with self.subTest(name):
                self.assertTrue(glossary.uses(name, 'cpu mask'))
        for name in ('cpumask', 'cpu', 'mask_cpu', 'cpu_unmask'):
            with self.subTest(name):
                self.assertFalse(glossary.uses(name, 'cpu mask'))


class GlossaryTest(unittest.TestCase):
    def test_each_term_is_in_the_glossary_once(self):
        counts = collections.Counter(term.name.lower() for term in TERMS)
        self.assertEqual([], [name for name, count in counts.items() if count > 1])
        self.assertTrue(40 <= len(TERMS) <= 80, len(TERMS))

    def test_each_term_is_defined_and_has_a_source(self):
        for term in TERMS:
            with self.subTest(term.name):
                self.assertTrue(term.definition.endswith('.'))
                self.assertTrue(term.source)

    def test_no_term_is_excluded_by_another(self):
        names = {tuple(glossary.words(term.name)): term.name for term in TERMS}
        for term in TERMS:
            for phrase in term.excluded:
                with self.subTest(term=term.name, phrase=phrase):
                    self.assertNotIn(tuple(glossary.words(phrase)), names)

    def test_names_in_the_package_and_in_tests_use_no_excluded_word(self):
        for directory, exceptions in (
            (glossary.PACKAGE, EXCEPTIONS),
            (glossary.TESTS, TEST_EXCEPTIONS),
        ):
            with self.subTest(directory.name):
                uses = list(glossary.excluded_uses(TERMS, directory))
                self.assertEqual(
                    [],
                    [
                        f'{path}:{line}: {name}: "{term}" is not "{phrase}"'
                        for path, line, name, phrase, term in uses
                        if name not in exceptions
                    ],
                )
                self.assertEqual(set(exceptions), {name for _, _, name, _, _ in uses})
