# SPDX-License-Identifier: Apache-2.0
"""The recipes name files that exist, and each recipe names a test."""

import re
import unittest

from tests.fixtures.checkout import TOP

TEXT = (TOP / 'CONTRIBUTING.rst').read_text(encoding='utf-8')


def recipes(text):
    """Return {title: text} of the sections below *Recipes*."""
    below = re.split(r'\n(?=[^\n]+\n=+\n)', text.partition('\nRecipes\n=')[2])[0]
    parts = re.split(r'\n([^\n]+)\n-+\n', below)
    return dict(zip(parts[1::2], parts[2::2]))


def files(text):
    """Return the paths that a text names in double backquotes."""
    return re.findall(r'``([A-Za-z_][\w.-]*/[\w./-]*)``', text)


class RecipesTest(unittest.TestCase):
    def test_each_recipe_names_files_that_exist(self):
        for title, text in recipes(TEXT).items():
            self.assertTrue(files(text), title)
            for path in files(text):
                with self.subTest(recipe=title, path=path):
                    self.assertTrue((TOP / path).exists())

    def test_each_recipe_names_a_test(self):
        for title, text in recipes(TEXT).items():
            with self.subTest(title):
                self.assertTrue([path for path in files(text) if path.startswith('tests/')])

    def test_make_targets_that_are_named_exist(self):
        makefile = (TOP / 'Makefile').read_text(encoding='utf-8')
        rules = re.findall(r'^([a-z0-9 -]+):', makefile, re.M)
        targets = {target for rule in rules for target in rule.split()}
        self.assertEqual(set(), set(re.findall(r'``make ([a-z0-9-]+)', TEXT)) - targets)
