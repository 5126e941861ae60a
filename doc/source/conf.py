# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration."""

project = 'nova-numa-pmc'
copyright = 'the nova-numa-pmc maintainers, Apache-2.0'
extensions = ['sphinx.ext.autodoc', 'oslo_config.sphinxext', 'reno.sphinxext']
html_theme = 'alabaster'
html_theme_options = {'description': "NUMA placement of Nova's libvirt guests"}
exclude_patterns = []
#: (source, name, description, authors, section)
man_pages = [
    ('man/' + name, name, description, 'the nova-numa-pmc maintainers', 8)
    for name, description in (
        ('nova-numa-rebalance', 'NUMA placement of libvirt guests, for the operator of a host'),
        ('nova-numa-agent', 'keep libvirt guests on the NUMA nodes where they belong'),
    )
]
