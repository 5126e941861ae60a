# SPDX-License-Identifier: Apache-2.0
"""Check how libvirt is deployed, because that affects what an operator has to do.

kolla and openstack-helm run libvirt and nova-compute in containers that share the host's pid and
cgroup namespaces. Each container has a file system of its own, which contains the hook, the
package and Nova's configuration.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import finding
from nova_numa_pmc.finding import Finding
from nova_numa_pmc.host import confinement, files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: (part of the name of a container's control group, the tool that deployed it).
_DEPLOYMENTS = (
    ('kubepods', 'openstack-helm'),
    ('libpod', 'kolla (podman)'),
    ('docker', 'kolla (docker)'),
)


def check_libvirt(root: str) -> Iterator[Finding]:
    """Check which daemon runs the hook, and whether it runs in a container."""
    daemon = confinement.find_daemon(root)
    if daemon is None:
        yield Finding(
            'libvirt-not-running',
            finding.NOTE,
            'neither virtqemud nor libvirtd is running; a modular daemon exits after 120 s '
            'without work and is started again on demand',
            'run virsh list, then repeat this check',
        )
        return
    if not daemon.same_root:
        inside = os.path.join(root, 'proc/%d/root' % daemon.pid)
        hook = os.path.join(inside, files.HOOKS, files.OUR_HOOK)
        if not os.path.exists(hook):
            yield Finding(
                'hook-not-in-container',
                finding.ERROR,
                '%s (pid %d) runs in a container (%s), and the hook is not installed there'
                % (daemon.name, daemon.pid, deployment_tool(root, daemon.pid)),
                'install the package in its image, run "nova-numa-rebalance hook install" in '
                'it, and share /run/nova-numa-pmc with the host',
                hook,
            )
    elif daemon.name == 'virtqemud':
        yield Finding(
            'libvirt-modular',
            finding.NOTE,
            'libvirt is modular: virtqemud (pid %d) runs the hook, not libvirtd' % daemon.pid,
            'where a guide tells you to reload libvirtd, reload virtqemud',
        )


def deployment_tool(root: str, pid: int) -> str:
    """Return the tool that deployed a containerised process, judging by its control group."""
    text = files.read_optional(root, 'proc/%d/cgroup' % pid) or ''
    return next((name for mark, name in _DEPLOYMENTS if mark in text), 'unknown deployment tool')
