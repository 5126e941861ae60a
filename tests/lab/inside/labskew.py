#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: ask numad and our decision about the same guests, at each skew.

Reads one JSON request on standard input: ``{"skews_mib": [...], "orders": [[MiB, ...], ...]}``.
After each answer, the memory that a guest touches by then is actually allocated on the chosen
node, so that it is missing for the next question. Writes one JSON line for each skew and order:
``{"skew_mib", "free_mib": [node 0, …], "order", "numad": [[nodes], …], "ours": [[nodes], …]}``.
"""

import json
import pathlib
import subprocess
import sys

from nova_numa_pmc import model
from nova_numa_pmc.core import host_view
from nova_numa_pmc.core.placement import placement
from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.host import topology

BASE = pathlib.Path('/run/labskew')
#: Of a walker guest that touches 12 % of its memory: QEMU's own memory, and this share [MiB].
QEMU_MIB, TOUCHED_RATIO = 20, 0.12


def take(name, node, mib):
    """Take memory on a node, as a file on a tmpfs bound to it."""
    place = BASE / f'node{node}'
    if not place.is_mount():
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'mpol=bind:{node}', 'skew', str(place)], check=True
        )
    subprocess.run(['fallocate', '-l', f'{mib}M', str(place / name)], check=True)


def give_back(pattern):
    """Free what was taken under that name."""
    for path in BASE.glob(f'*/{pattern}'):
        path.unlink()


def free_mib():
    """Return the free memory of each node [MiB]."""
    return [
        int(path.read_text().split('MemFree:')[1].split()[0]) >> 10
        for path in sorted(pathlib.Path('/sys/devices/system/node').glob('node*/meminfo'))
    ]


def touch(guest, memory_mib, nodes):
    """Take what a started guest has touched, in equal parts on the chosen nodes."""
    for node in nodes:
        take(
            f'guest{guest}',
            node,
            max(1, round((QEMU_MIB + TOUCHED_RATIO * memory_mib) / len(nodes))),
        )


def ask_numad(order):
    """Ask as libvirt does for placement='auto': numad -w VCPUS:MIB; return lists of nodes."""
    answers = []
    for guest, memory_mib in enumerate(order):
        done = subprocess.run(
            ['numad', '-w', f'1:{memory_mib}'], capture_output=True, text=True, check=True
        )
        answers.append(sorted(parse_cpulist(done.stdout.strip())))
        touch(guest, memory_mib, answers[-1])
    give_back('guest*')
    return answers


def ask_ours(order):
    """Let our decision place the guests, from the live sysfs; return lists of nodes."""
    answers, promises, placement_options = [], [], model.PlacementOptions()
    for number, memory_mib in enumerate(order):
        guest = model.Guest(
            uuid=f'{number}', name=f'guest{number}', vcpus=1, memory_bytes=memory_mib << 20
        )
        view = host_view.view(topology.read(), promises, placement_options, rotation=number)
        placed = placement.place(
            view, host_view.request(guest, placement_options), placement_options
        )
        promises.append(placement.new_promise(guest, placed, 0))
        answers.append(list(placed.cpu_nodes))
        touch(number, memory_mib, placed.cpu_nodes)
    give_back('guest*')
    return answers


def main():
    """Answer the request."""
    request = json.load(sys.stdin)
    for skew_mib in request['skews_mib']:
        give_back('skew')
        if skew_mib:
            take('skew', 0, skew_mib)
        for order in request['orders']:
            free = free_mib()
            print(
                json.dumps(
                    {
                        'skew_mib': skew_mib,
                        'free_mib': free,
                        'order': order,
                        'numad': ask_numad(order),
                        'ours': ask_ours(order),
                    }
                ),
                flush=True,
            )
    give_back('skew')


if __name__ == '__main__':
    main()
