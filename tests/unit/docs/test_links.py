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
    def test_each_target_of_a_link_exists(self):
        for path in sorted(TOP.glob('*.rst')):
            for target in targets(path.read_text(encoding='utf-8')):
                with self.subTest(document=path.name, target=target):
                    self.assertTrue((path.parent / target).exists())
