# SPDX-License-Identifier: Apache-2.0
"""Memory of a node that no guest uses: a file on a tmpfs bound to the node."""

PLACE = '/run/skew'


def take(machine, node, mib):
    """Take memory of a node until :func:`give_back` is called."""
    place = f'{PLACE}/node{node}'
    machine.run(
        f'mkdir -p {place} && mount -t tmpfs -o size={mib}m,mpol=bind:{node} skew '
        f'{place} && fallocate -l {mib}M {place}/fill',
        timeout=200,
    )


def give_back(machine, node):
    """Release the memory taken on a node."""
    machine.run(f'umount {PLACE}/node{node}')
