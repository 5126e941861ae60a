# SPDX-License-Identifier: Apache-2.0
"""The shape of a machine (nodes, CPUs, memory, distances) and QEMU's arguments for it."""

import dataclasses
import hashlib
import json

MIB = 1 << 20
LOCAL_NS, REMOTE_NS = 60, 100  # the two-socket Xeon X5675 of the KVM tuning deck, eBay 2013
LOCAL_MIB_S, REMOTE_MIB_S = 20480, 10240
MAX_NODES, MAX_CPUS = 16, 64  # plugin/counters.h
#: Without 57-bit addresses, and without the CPUs' hints that copying and clearing byte by byte is
#: fast: each byte costs QEMU as much as a word, or more (doc/source/contributor/lab.rst).
CPU = 'max,la57=off,erms=off,fsrm=off'


class ShapeError(Exception):
    """A machine that cannot be built; the message names the option and the reason."""


def mebibytes(text):
    """Turn '2G', '512M' or '2048' (MiB) into MiB."""
    units = {'G': 1024, 'M': 1}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in units else (text, 'M')
    if not number.isdigit() or not int(number):
        raise ShapeError(f'{text!r} is not a size: write 2G, 1536M or 2048 (MiB)')
    return int(number) * units[unit]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a machine that ``numalab up`` builds.

    :param memory_mib: MiB of each node, the memory-only nodes last
    :param distances: rows of SLIT distances, or None for 10 local, 20 remote
    :param memory_only: how many of the last nodes have no CPUs
    :param threads: SMT threads of a core; above 1, the machine has no KVM, so no guests
    :param append: additional words for the kernel's command line
    :param sockets: number of sockets for the nodes with CPUs; 0 means one for each node
    """

    nodes: int = 2
    cpus_per_node: int = 2
    memory_mib: tuple = (2048, 2048)
    distances: tuple = None
    hmat: bool = False
    cgroup: str = 'v2'
    memory_only: int = 0
    pmu: bool = True
    threads: int = 1
    append: str = ''
    sockets: int = 0

    def __post_init__(self):
        """Reject a shape that QEMU or the counters' layout cannot represent."""
        cpu_nodes = self.nodes - self.memory_only
        checks = [
            (1 <= self.nodes <= MAX_NODES, f'--nodes: 1 to {MAX_NODES}'),
            (cpu_nodes >= 1, '--memory-only-node: at least one node needs CPUs'),
            (cpu_nodes * self.cpus_per_node <= MAX_CPUS, f'at most {MAX_CPUS} CPUs in all'),
            (self.cpus_per_node % self.threads == 0, '--cpus-per-node must be whole cores'),
            (len(self.memory_mib) == self.nodes, f'--mem-per-node: {self.nodes} sizes'),
            (min(self.memory_mib) >= 256, '--mem-per-node: at least 256M a node'),
            (self.cgroup in ('v1', 'v2'), '--cgroup: v1 or v2'),
            (not self.sockets or cpu_nodes % self.sockets == 0, 'as many nodes on each socket'),
        ]
        if self.distances is not None:
            square = len(self.distances) == self.nodes and all(
                len(row) == self.nodes for row in self.distances
            )
            checks.append((square, f'--distances: {self.nodes} rows of {self.nodes}'))
            checks.append(
                (
                    square
                    and all(
                        (10 if i == j else 11) <= d <= (10 if i == j else 254)
                        for i, row in enumerate(self.distances)
                        for j, d in enumerate(row)
                    ),
                    '--distances: 10 on the diagonal, 11 to 254 elsewhere',
                )
            )
        for fine, message in checks:
            if not fine:
                raise ShapeError(message)

    @property
    def cpus(self):
        """All CPUs of the machine."""
        return (self.nodes - self.memory_only) * self.cpus_per_node

    def node_cpus(self, node):
        """Return the CPUs of a node as a range, which is empty for a memory-only one."""
        if node >= self.nodes - self.memory_only:
            return range(0)
        return range(node * self.cpus_per_node, (node + 1) * self.cpus_per_node)

    def distance(self, i, j):
        """Return the SLIT distance of two nodes."""
        if self.distances is not None:
            return self.distances[i][j]
        return 10 if i == j else 20

    def key(self):
        """Return a name for this shape, derived from its content."""
        fields = dataclasses.asdict(self)
        if not self.sockets:  # keeps the keys of machines frozen without it
            del fields['sockets']
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def qemu_args(self):
        """Return QEMU's arguments for CPUs, nodes, memory, distances and HMAT."""
        sockets = self.sockets or self.nodes - self.memory_only
        cores = self.cpus // sockets // self.threads
        # TCG cannot show SMT on an AMD CPU (no TOPOEXT), and the kernel's SVM requires an AMD one.
        cpu = CPU + (',vendor=GenuineIntel' if self.threads > 1 else '')
        args = [
            '-machine',
            'pc,hmat=on' if self.hmat else 'pc',
            '-cpu',
            cpu,
            '-m',
            f'{sum(self.memory_mib)}M',
            '-smp',
            f'{self.cpus},sockets={sockets},cores={cores},threads={self.threads}',
        ]
        for node, size in enumerate(self.memory_mib):
            cpus = self.node_cpus(node)
            args += [
                '-object',
                f'memory-backend-ram,id=m{node},size={size}M',
                '-numa',
                f'node,nodeid={node},memdev=m{node}'
                + (f',cpus={cpus[0]}-{cpus[-1]}' if cpus else '')
                + (f',initiator={node if cpus else 0}' if self.hmat else ''),
            ]
        for i in range(self.nodes):
            for j in range(self.nodes):
                if i != j:
                    args += ['-numa', f'dist,src={i},dst={j},val={self.distance(i, j)}']
        return args + (self._hmat_args() if self.hmat else [])

    def _hmat_args(self):
        args = []
        for i in range(self.nodes - self.memory_only):
            for j in range(self.nodes):
                ns = LOCAL_NS + (REMOTE_NS - LOCAL_NS) * (self.distance(i, j) - 10) // 10
                mib_s = LOCAL_MIB_S if i == j else REMOTE_MIB_S
                lb = f'hmat-lb,initiator={i},target={j},hierarchy=memory,data-type'
                args += [
                    '-numa',
                    f'{lb}=access-latency,latency={ns}',
                    '-numa',
                    f'{lb}=access-bandwidth,bandwidth={mib_s}M',
                ]
        return args

    def kernel_words(self):
        """Return the kernel's command line for this shape."""
        words = [
            'console=ttyS0 root=/dev/vda rw quiet mitigations=off panic=-1 net.ifnames=0',
            'tsc=reliable clocksource=tsc hpet=disable',
        ]
        if self.cgroup == 'v1':
            words.append('systemd.unified_cgroup_hierarchy=0')
        return ' '.join(words + ([self.append] if self.append else []))
