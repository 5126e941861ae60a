# SPDX-License-Identifier: Apache-2.0
"""NUMA-aware placement of guests for OpenStack Nova and libvirt/KVM, by measured pressure.

doc/source/contributor/architecture.rst describes the layout of the package.
"""

from __future__ import annotations


def installed_version() -> str:
    """Return the version of the installed package, or 'unknown'."""
    from importlib import metadata  # slow to import, and never needed when a guest starts

    try:
        return metadata.version('nova-numa-pmc')
    except metadata.PackageNotFoundError:
        return 'unknown'
