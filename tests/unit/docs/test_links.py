# SPDX-License-Identifier: Apache-2.0
"""Links of documents at the top of the checkout, which are read without Sphinx, have targets.

Those below doc/source are checked by `make docs`, which treats warnings as errors.
"""

import re
import unittest

from tests.fixtures.checkout import TOP

LINK = re.compile(r'`[^`<]+<([^`<>]+)>`_|^\.\. (?:image|figure):: (\S+)', re.M)


def targets(text):
    """Return the paths that a document links to or displays, without URLs."""
    links = [link or image for link, image in LINK.findall(text)]
    return [path for path in links if '://' not in path and not path.startswith(('#', 'mailto:'))]


class LinksTest(unittest.TestCase):
    def test_links_and_images_are_found(self):
        self.assertEqual(
            ['a/b.rst', 'c.png'],
            targets(
                'See `a thing\n<a/b.rst>`_, `that <https://example.org>`_.\n\n.. image:: c.png\n'
            ),
        )

    def test_each_target_of_a_link_exists(self):
        for path in sorted(TOP.glob('*.rst')):
            for target in targets(path.read_text(encoding='utf-8')):
                with self.subTest(document=path.name, target=target):
                    self.assertTrue((path.parent / target).exists())

    def test_the_readme_shows_the_demo_before_its_first_section(self):
        above = (TOP / 'README.rst').read_text(encoding='utf-8').partition('\nInstall')[0]
        self.assertEqual(['doc/source/_static/demo.png'], targets(above))
