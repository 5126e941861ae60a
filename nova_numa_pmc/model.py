# SPDX-License-Identifier: Apache-2.0
"""The records that the core, the readers of the host and Nova's plug-ins share.

The records are immutable, and are not data classes: the libvirt hook imports this module at
every guest start, and importing ``dataclasses`` alone would more than double the hook's process
time.

Units are in the names. ``None`` means unknown, never 0. Node ids are the
kernel's; CPUs are the kernel's logical CPU numbers in frozensets.
"""

from __future__ import annotations

from nova_numa_pmc.record import Record

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    #: A guest's uuid and pid, which tell apart two lives of one guest.
    Life = tuple[str, int | None]

#: Namespace prefix of this package's extra specs.
EXTRA_SPEC_PREFIX = 'numa_pmc:'
#: Values of ``hw:cpu_policy`` with which Nova itself pins vCPUs.
DEDICATED_POLICIES = ('dedicated', 'mixed')
#: How a flavor or an operator wants a guest placed (``numa_pmc:policy``).
AUTO, SPREAD, ONE_NODE, NONE = 'auto', 'spread', 'one_node', 'none'
POLICIES = (AUTO, SPREAD, ONE_NODE, NONE)
#: Origin of a guest's place: this package, others, or nothing (it floats).
PLACED, PINNED, FLOATING = 'placed', 'pinned', 'floating'
#: An operator's overrides of a guest: held to its place and never moved; neither held nor moved,
#: nor placed at its next start.
PIN, IGNORE = 'pin', 'ignore'
#: Kinds of a node's memory: the host's own; a device's, such as a GPU's; of a slower tier, such as
#: CXL.
HOST, DEVICE, SLOW = 'host', 'device', 'slow'


class HugePages(Record):
    """A node's pool of huge pages of one size: size [bytes], total pages, free pages."""

    page_bytes: int
    total: int
    free: int


class NodeMemory(Record):
    """The kind of a node's memory, and the evidence for it.

    :param kind: :data:`HOST`, :data:`DEVICE` or :data:`SLOW`
    :param source: the evidence, for the operator; empty: there is none, and it is the host's own
    """

    kind: str = HOST
    source: str = ''


class Node(Record):
    """One NUMA node as the kernel shows it.

    :param cpus: CPUs of the floating pool (:mod:`pools`); empty for a memory-only node
    :param memory_bytes: MemTotal; 0 for a CPU-only node
    :param free_bytes: MemFree now
    :param unreclaimable_bytes: what the kernel cannot reclaim (slab, page tables, stacks)
    :param online_cpus: ``cpus`` and those withheld from unpinned guests
    :param usable_cpus: what a ``<vcpu cpuset>`` may give a guest: online, neither
        isolated nor nohz_full, in the guests' partition
    :param memory: whose memory it is, as the kernel reports it
    """

    id: int
    cpus: frozenset[int]
    memory_bytes: int = 0
    free_bytes: int = 0
    unreclaimable_bytes: int = 0
    huge_pages: tuple[HugePages, ...] = ()
    online_cpus: frozenset[int] = frozenset()
    usable_cpus: frozenset[int] = frozenset()
    memory: NodeMemory = NodeMemory()


class Topology(Record):
    """A host: its nodes in ascending id order.

    :param distances: tuple of tuples of SLIT distances, by *position* in ``nodes`` (row: from)
    :param cores: tuple of frozensets, the SMT siblings of each physical core
    :param l3s: tuple by position: tuple of frozensets, the online CPUs of each L3 cache that has
        CPUs of the node, which may be other nodes' too; (): not known
    :param sockets: tuple by position: number of the physical package, None: not known
    :param vendor: of the CPUs, as in /proc/cpuinfo; '' if it was not read
    :param problems: what its firmware reports wrongly, and how it was corrected
    """

    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    cores: tuple[frozenset[int], ...]
    l3s: tuple[tuple[frozenset[int], ...], ...] = ()
    sockets: tuple[int | None, ...] = ()
    vendor: str = ''
    problems: tuple[str, ...] = ()

    @property
    def online_cpus(self) -> frozenset[int]:
        """Return the online CPUs of all nodes."""
        return frozenset[int]().union(*(node.online_cpus for node in self.nodes))


class Guest(Record):
    """A libvirt domain, as its XML describes it.

    :param vcpus: vCPUs online at start
    :param vcpus_max: as the XML has it, None: as ``vcpus``; see :attr:`vcpus_limit`
    :param memory_bytes: RAM that it may grow to (maxMemory, else memory) and is *promised*;
        persistent memory does not count
    :param allowed_cpus: ``<vcpu cpuset>``, None where the XML sets none
    :param placed_by: what others have placed already ('numatune', 'vcpupin',
        'emulatorpin', 'dedicated'…); empty: ours to place
    :param cpu_nodes: ids of the nodes of ``pinned_cpus``, by the topology; empty where that was
        not applied
    :param mem_nodes: node ids that numatune names; empty: none
    :param page_bytes: huge page size its memory is backed by, None: normal pages
    :param locked: memory that cannot move (``<locked/>``, SEV, VFIO)
    :param pci_devices: PCI addresses ('0000:3b:00.1') of its host devices
    :param extra_specs: (key, value) pairs, sorted: the flavor's ``numa_pmc:*`` extra specs
    :param pid: QEMU's process where known (status files), else None
    :param pinned_cpus: the union of the CPUs that others pinned its vCPUs to;
        None: not pinned
    :param flavor: name of Nova's flavor, None: not Nova's or not reported
    :param preallocated: its memory is allocated before its CPUs run (``<allocation
        mode='immediate'/>``), as is that of a guest with ``locked`` or ``page_bytes``
    :param vcpu_tids: thread ids of its vCPUs where known (status files), ascending
    :param host_devices: other devices of the host that it uses, by their names, sorted:
        network interfaces below macvtap ('eth0') and block devices ('/dev/nvme0n1')
    :param state: libvirt's word for its state ('running', 'paused'), None: not reported
    :param job: libvirt's word for its long job ('migration out', 'migration in', 'save',
        'snapshot', 'backup', 'dump'), None: it has none
    :param id: libvirt's id of the running domain; None: not reported
    :param override: the operator's override (:mod:`overrides`): :data:`PIN`, :data:`IGNORE`,
        '' nothing
    :param pins: (control group's name: 'vcpu0', 'emulator', 'iothread1'; frozenset of
        CPUs) of ``<cputune>``'s pins, sorted by name
    :param plugged_bytes: RAM that is plugged now; None: all of ``memory_bytes``
    :param mem_bound: all of its memory is restricted to ``mem_nodes``; else these nodes are only
        preferred, or apply to a part of it
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    vcpus_max: int | None = None
    allowed_cpus: frozenset[int] | None = None
    placed_by: tuple[str, ...] = ()
    cpu_nodes: tuple[int, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    page_bytes: int | None = None
    locked: bool = False
    pci_devices: tuple[str, ...] = ()
    iothreads: int = 0
    extra_specs: tuple[tuple[str, str], ...] = ()
    pid: int | None = None
    pinned_cpus: frozenset[int] | None = None
    flavor: str | None = None
    preallocated: bool = False
    vcpu_tids: tuple[int, ...] = ()
    host_devices: tuple[str, ...] = ()
    state: str | None = None
    job: str | None = None
    id: int | None = None
    override: str = ''
    pins: tuple[tuple[str, frozenset[int]], ...] = ()
    plugged_bytes: int | None = None
    mem_bound: bool = False

    @property
    def life(self) -> Life:
        """Return its uuid and pid; the pair changes when the guest is started again."""
        return self.uuid, self.pid

    @property
    def vcpus_limit(self) -> int:
        """Return its number of vCPUs once all are plugged in."""
        return max(self.vcpus, self.vcpus_max or 0)


class Promise(Record):
    """Nodes, vCPUs and memory promised to one guest, whether or not it uses them yet.

    :param cpu_nodes: node ids its vCPUs are held to; empty: floating over all
    :param mem_nodes: node ids its memory is expected on; empty: spread over all
    :param vcpus: those online at start, which load its nodes; 0 if it may use none of the
        floating pool's CPUs
    :param memory_bytes: what it may grow to
    :param bound: its memory may only come from ``mem_nodes`` (else from any node)
    :param origin: :data:`PLACED` by us, :data:`PINNED` by others, :data:`FLOATING`
    :param since_ns: CLOCK_BOOTTIME when promised
    :param started: its start was seen (else the start is in progress)
    :param mem_bytes: parallel to ``mem_nodes``: how a spanning guest's memory was
        divided when promised; empty: not recorded
    :param missed: the installed hook failed to place it at its start: the agent does it instead
    :param cpus: in ascending order, those of the L3 cache that it is held to on its nodes
        (:func:`pools.cpus_held`); empty: all that it may use of these
    """

    uuid: str
    name: str
    cpu_nodes: tuple[int, ...]
    mem_nodes: tuple[int, ...]
    vcpus: int
    memory_bytes: int
    page_bytes: int | None = None
    bound: bool = False
    origin: str = PLACED
    since_ns: int = 0
    started: bool = False
    mem_bytes: tuple[int, ...] = ()
    missed: bool = False
    cpus: tuple[int, ...] = ()


class NodeView(Record):
    """One node as the decision sees it: aggregates only, so that it fits in Nova's metrics.

    :param cores: capacity [cores], SMT siblings at their fraction; 0 for a memory-only node
    :param threads: usable CPUs
    :param capacity_bytes: what may be promised in normal pages (ram ratio applied)
    :param promised_bytes: what is promised in normal pages
    :param guests: guests placed on it (float: a spanning guest counts in parts)
    :param vcpus: vCPUs of these guests (float: those of a spanning guest count in parts)
    :param demand_cores: cores wanted, None: unknown
    :param bandwidth_bytes_per_sec: DRAM traffic served, None: unknown
    :param bandwidth_max_bytes_per_sec: the most DRAM traffic that it can serve, None: unknown, and
        then so is its utilisation
    :param link_ratio: utilisation of its busiest socket link, None: not counted
    :param huge_free_bytes: (page_bytes, bytes free) pairs
    :param cpus: usable CPUs on the host itself; None off the host
    """

    id: int
    cores: float
    threads: int
    capacity_bytes: int
    promised_bytes: int
    guests: float = 0
    vcpus: float = 0
    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    bandwidth_max_bytes_per_sec: float | None = None
    link_ratio: float | None = None
    huge_free_bytes: tuple[tuple[int, int], ...] = ()
    cpus: frozenset[int] | None = None


class NodeLoad(Record):
    """Measurements of one node; the fields are :class:`NodeView`'s, None: unknown.

    :param stolen_cores: CPU time stolen by the host's own hypervisor, to be taken off ``cores``
    """

    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    bandwidth_max_bytes_per_sec: float | None = None
    link_ratio: float | None = None
    stolen_cores: float | None = None


class PoolLoad(Record):
    """Measurements of one pool of CPUs: those that the same guests may use.

    :param cpus: the CPUs that it consists of
    :param loads: (node id, :class:`NodeLoad`), ascending ids; the demand is that on the pool's
        CPUs of the node, all other figures are of the whole node
    :param vcpus: (node id, vCPUs of the guests that are in these figures), ascending ids
    """

    cpus: frozenset[int]
    loads: tuple[tuple[int, NodeLoad], ...] = ()
    vcpus: tuple[tuple[int, float], ...] = ()


class DemandHistory(Record):
    """Demand of the guests seen so far: of a flavor, or of all guests of the host.

    :param guests: their number; forgotten ones count in parts
    :param cores_per_vcpu_sum: the sum over them of each one's demand per vCPU [cores]
    :param bytes_per_core_sec: the host's DRAM traffic per core-second of its guests
    """

    guests: float = 0
    cores_per_vcpu_sum: float = 0.0
    bytes_per_core_sec: float | None = None


class HostView(Record):
    """A host as the decision sees it.

    :param nodes: in the order of their ids
    :param distances: tuple of tuples by position, SLIT units (10: local); means between domains
    :param rotation: how many placements came before; breaks ties between equals
    :param domains: tuple by position: the lowest position of the nodes that share their memory
        channels with this one; (): each node has its own
    """

    nodes: tuple[NodeView, ...]
    distances: tuple[tuple[float, ...], ...]
    rotation: int = 0
    domains: tuple[int, ...] = ()


class Request(Record):
    """A guest that is to be placed.

    :param vcpus: the most it may have; each needs a thread to run on
    :param memory_bytes: what it may grow to
    :param page_bytes: huge page size, None: normal pages
    :param allowed_cpus: where it may run, None: anywhere
    :param device_nodes: node ids of its devices
    :param policy: one of :data:`POLICIES`
    :param demand_cores: expected demand [cores], None: derived from vCPUs
    :param bandwidth_bytes_per_sec: expected traffic, None: unknown
    :param placed_by: what others have placed already, as in :class:`Guest`
    """

    vcpus: int
    memory_bytes: int
    page_bytes: int | None = None
    allowed_cpus: frozenset[int] | None = None
    device_nodes: tuple[int, ...] = ()
    policy: str = AUTO
    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    placed_by: tuple[str, ...] = ()


class Reason(Record):
    """A reason as data: a code and (name, value) pairs, rendered only where it is shown."""

    code: str
    values: tuple[tuple[str, object], ...] = ()


class Placement(Record):
    """Where a guest belongs.

    :param nodes: node ids, ascending; empty: leave it alone, ``reasons`` say why
    :param cpus: for its ``cpuset.cpus``; None off the host or when left alone
    :param reasons: why there, the deciding one first
    :param mem_nodes: node ids where the memory is expected: ``nodes`` where it fits there, so it
        may be brought there, or bound if the operator wants; the nearest nodes with memory of a
        CPU-only node; else empty: only CPUs are held, and memory stays unbound
    :param mem_bytes: parallel to ``mem_nodes``, what to promise on each; empty where
        that is on one node, or anywhere
    """

    nodes: tuple[int, ...]
    cpus: frozenset[int] | None = None
    reasons: tuple[Reason, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    mem_bytes: tuple[int, ...] = ()


class PlacementOptions(Record):
    """The operator's placement options; ``conf/host_options.py`` describes each.

    :param ram_ratio: Nova's RAM allocation ratio on this host
    :param reserve_bytes: per node, kept for the host itself
    :param smt_ratio: s, what an SMT sibling adds to a core [cores]
    :param domain_distance: nodes nearer than this share their memory channels, whatever the
        caches show [SLIT units]; 0: as these show (``core/cache_hierarchy.py``)
    :param pressure_floor: pressures below this count as equal
    :param pressure_step: pressures closer than this are equal
    :param device_memory_nodes: ids of nodes whose memory is a device's where the kernel does not
        say so; nodes with CPUs do not count
    :param guest_memory_nodes: ids of nodes whose memory is for guests, whatever its kind
    """

    ram_ratio: float = 1.0
    reserve_bytes: int = 256 << 20
    smt_ratio: float = 0.25
    domain_distance: int = 0
    pressure_floor: float = 0.7
    pressure_step: float = 0.05
    device_memory_nodes: frozenset[int] = frozenset()
    guest_memory_nodes: frozenset[int] = frozenset()
