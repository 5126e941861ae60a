# SPDX-License-Identifier: Apache-2.0
"""Memory of a node that is taken by none of our guests: a file on a tmpfs bound to it."""

PLACE = '/run/skew'


def take(machine, node, mib):
    """Take memory of a node until :func:`give_back`."""
    place = f'{PLACE}/node{node}'
    machine.run(
        f'mkdir -p {place} && mount -t tmpfs -o size={mib}m,mpol=bind:{node} skew '
        f'{place} && fallocate -l {mib}M {place}/fill',
        timeout=200,
    )


def give_back(machine, node):
    """Give back what is taken of a node."""
    machine.run(f'umount {PLACE}/node{node}')
