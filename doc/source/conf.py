# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration."""

project = 'nova-numa-pmc'
copyright = 'the nova-numa-pmc maintainers, Apache-2.0'
extensions = ['sphinx.ext.autodoc', 'oslo_config.sphinxext', 'reno.sphinxext']
html_theme = 'alabaster'
html_theme_options = {'description': "NUMA placement of Nova's libvirt guests"}
exclude_patterns = []
