# SPDX-License-Identifier: Apache-2.0
"""The page is whole, needs nothing from elsewhere, and no guest's name can become markup."""

import re
import unittest
from html import escape
from xml.etree import ElementTree

from hypothesis import given, strategies as st

from nova_numa_pmc.cli import page, tables
from nova_numa_pmc.core.measurements import NodeSample
from tests.fixtures.model_records import GIB

NODES = (
    NodeSample(0, capacity_cores=5.0, demand_cores=6.0, cpu_ratio=1.2, pressure=1.2),
    NodeSample(3, capacity_cores=5.0),
)


def guest(name='g', nodes=(0,), cores=2.0, size=GIB, by_node=None, why='placed 5 min ago'):
    return page.GuestBox(name, nodes, cores, size, {0: size} if by_node is None else by_node, why)


def draw(*guests, nodes=NODES, rows=()):
    table = tables.Table(('guest', 'why'), rows, (0,))
    return page.to_html('Host', [page.Picture('Now', nodes, guests)], [table])


def panels(html):
    """Parse each panel's SVG; return {title: panel}."""
    drawn = [
        ElementTree.fromstring(text.replace(' xmlns="http://www.w3.org/2000/svg"', ''))
        for text in re.findall(r'<svg.*?</svg>', html, re.S)
    ]
    return {svg.findtext('text'): svg for svg in drawn}


def sizes(panel):
    """Return (width, height) of each guest's frame."""
    return [
        (float(frame.get('width')), float(frame.get('height')))
        for frame in panel.iterfind('g/rect[@fill="none"]')
    ]


class PageTest(unittest.TestCase):
    def test_a_guest_is_drawn_at_its_nodes_as_large_as_it_is(self):
        by_title = panels(
            draw(
                guest(cores=4.0, size=8 * GIB),
                guest(cores=2.0, size=4 * GIB),
                guest(nodes=(0, 3)),
                guest(nodes=()),
            )
        )
        self.assertEqual(['node 0', 'node 3', 'nodes 0,3', 'any node'], list(by_title))
        large, half = sizes(by_title['node 0'])
        self.assertEqual((large[0] / 2, large[1] / 2), half)
        self.assertEqual([], sizes(by_title['node 3']))

    def test_the_page_needs_nothing_from_elsewhere_and_has_no_script(self):
        html = draw(guest(), rows=[('g', 'placed')])
        self.assertNotRegex(html, r'(?i)<script|<link|<img|@import|url\(|\bon\w+=|src=|href=')

    @given(st.text(), st.text())
    def test_no_name_or_reason_becomes_markup(self, name, why):
        html = draw(guest(name, why=why), rows=[(name, why)])
        self.assertEqual(1, len(panels(html)['node 0'].findall('g')))  # it is well-formed
        plain = draw(guest('', why=''), rows=[('', '')])
        self.assertEqual(plain.count('<'), html.count('<'))
        if name.isprintable():
            self.assertIn('>%s<' % escape(name), html)
