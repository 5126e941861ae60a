# SPDX-License-Identifier: Apache-2.0
"""The records that the core, the readers of the host and Nova's plug-ins share.

The records are immutable. They are not data classes, because the libvirt hook imports this module
at every guest start, and importing ``dataclasses`` would by itself more than double the process
time of the hook.

Names contain units. ``None`` means unknown, never 0. Node ids are the kernel's, and CPUs are
frozensets of the kernel's logical CPU numbers.
"""

from __future__ import annotations

from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from nova_numa_pmc.json_values import Share

    #: A guest's uuid and pid, which identify one run of the guest, from its start to its end.
    RunId = tuple[str, int | None]

MIB, GIB, MB = 1 << 20, 1 << 30, 10**6

#: Namespace prefix of this package's extra specs.
EXTRA_SPEC_PREFIX = 'numa_pmc:'
#: Values of ``hw:cpu_policy`` with which Nova itself pins vCPUs.
DEDICATED_POLICIES = ('dedicated', 'mixed')
#: How a flavor or an operator wants a guest placed (``numa_pmc:policy``).
AUTO, SPREAD, ONE_NODE, STAY, NONE = 'auto', 'spread', 'one_node', 'stay', 'none'
POLICIES = (AUTO, SPREAD, ONE_NODE, STAY, NONE)
#: The extra spec that has it.
POLICY_KEY = EXTRA_SPEC_PREFIX + 'policy'
#: Modes of ``<numatune>``: memory only on its nodes, on them while there is room, and page by page
#: on each of them.
STRICT, PREFERRED, INTERLEAVE = 'strict', 'preferred', 'interleave'
#: Origin of a guest's place: this package, others, or nothing (it floats).
PLACED, BY_OTHERS, FLOATING = 'placed', 'pinned', 'floating'
#: {origin: its text for operators}
ORIGIN_TEXTS = {PLACED: 'placed', BY_OTHERS: 'placed by others', FLOATING: 'floating'}
#: An operator's overrides for a guest. PIN: hold it to its place and never move it. IGNORE:
#: neither hold nor move it, and do not place it at its next start.
PIN, IGNORE = 'pin', 'ignore'
#: Kinds of the host's devices: a PCI device given to the guest with VFIO, a mediated one (vGPU), a
#: vDPA device, an interface below macvtap, a block device, and a process that serves the guest's
#: device from the guest's memory.
PCI, MDEV, VDPA, INTERFACE, BLOCK, VHOST_USER = (
    'pci',
    'mdev',
    'vdpa',
    'interface',
    'block',
    'vhost-user',
)


class HugePages(Record):
    """A node's pool of huge pages of one size: size [bytes], total pages, free pages."""

    page_bytes: int
    total: int
    free: int


class Node(Record):
    """One NUMA node as the kernel shows it.

    :param cpus: CPUs of the floating pool (:mod:`pools`); empty for a memory-only node
    :param memory_bytes: MemTotal; 0 for a CPU-only node
    :param free_bytes: MemFree now
    :param unreclaimable_bytes: memory that the kernel cannot reclaim (slab, page tables, stacks)
    :param online_cpus: ``cpus`` and the CPUs that are withheld from unpinned guests
    :param usable_cpus: CPUs that a ``<vcpu cpuset>`` or a partition may give to a guest: online
        and not isolated
    :param is_far: whether its memory is near no CPU, online or not: a device's or a slower
        tier's; guests get it only if asked (:func:`host_view.is_for_guests`)
    """

    id: int
    cpus: frozenset[int]
    memory_bytes: int = 0
    free_bytes: int = 0
    unreclaimable_bytes: int = 0
    huge_pages: tuple[HugePages, ...] = ()
    online_cpus: frozenset[int] = frozenset()
    usable_cpus: frozenset[int] = frozenset()
    is_far: bool = False


class Topology(Record):
    """The nodes, cores and caches of a host.

    :param nodes: in ascending order of their ids
    :param distances: SLIT distances, one row for each node that accesses memory; rows and columns
        are by *position* in ``nodes``
    :param cores: the SMT siblings of each physical core, a frozenset for each core
    :param l3s: by position: the online CPUs of each L3 cache that serves CPUs of the node,
        a frozenset for each cache, which may contain other nodes' CPUs too; empty: unknown
    :param sockets: by position: number of the physical package; None: unknown
    :param vendor: vendor of the CPUs, as in /proc/cpuinfo; empty if it was not read
    """

    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    cores: tuple[frozenset[int], ...]
    l3s: tuple[tuple[frozenset[int], ...], ...] = ()
    sockets: tuple[int | None, ...] = ()
    vendor: str = ''

    @property
    def online_cpus(self) -> frozenset[int]:
        """Return the online CPUs of all nodes."""
        return frozenset[int]().union(*(node.online_cpus for node in self.nodes))


class HostDevice(Record):
    """A device of the host that a guest uses.

    :param kind: :data:`PCI`, :data:`MDEV`, :data:`VDPA`, :data:`INTERFACE`, :data:`BLOCK` or
        :data:`VHOST_USER`
    :param name: PCI address ('0000:3b:00.1'), uuid of a mediated device, network interface
        ('eth0'), path ('/dev/nvme0n1', '/dev/vhost-vdpa-0', that of a socket); empty: unknown
    """

    kind: str
    name: str

    @property
    def locks_memory(self) -> bool:
        """Return whether the kernel pins the memory of a guest that uses it, for DMA.

        libvirt raises the limit on locked memory for these (qemuDomainGetMemLockLimitBytes in its
        src/qemu/qemu_domain.c).
        """
        return self.kind in (PCI, MDEV, VDPA)


class Guest(Record):
    """A libvirt domain, as its XML describes it.

    :param vcpus: vCPUs online at start
    :param vcpus_max: the number that it may grow to; None: ``vcpus``
    :param memory_bytes: RAM that it has now (``<memory>``) and that it is *promised*; persistent
        memory does not count
    :param allowed_cpus: ``<vcpu cpuset>``; None if the XML sets none
    :param placed_by: the elements of its XML and the extra specs by which others place it
        ('numatune', 'vcpupin', 'hw:numa_nodes'), and 'numad' or 'dedicated'; empty: it is ours to
        place
    :param pinned_nodes: ids of the nodes that have ``pinned_cpus``; empty before the topology has
        been applied
    :param numatune_nodes: ids of the nodes that numatune names; empty: none
    :param page_bytes: size of the huge pages that back its memory; None: normal pages
    :param locked: whether its memory cannot be moved (``<locked/>``, SEV, VFIO)
    :param devices: the host's devices that it uses, those that lock its memory first
    :param extra_specs: the flavor's ``numa_pmc:*`` extra specs, sorted (key, value) pairs
    :param pid: id of its QEMU process; None if unknown (it is read from status files)
    :param pinned_cpus: the union of the CPUs to which others have pinned its vCPUs;
        None: not pinned
    :param flavor: name of Nova's flavor; None: not a guest of Nova, or not reported
    :param preallocated: whether its memory is allocated before its CPUs run (``<allocation
        mode='immediate'/>``), as is that of a guest with ``locked`` or ``page_bytes``
    :param vcpu_tids: thread ids of its vCPUs, ascending; empty if unknown (from status files)
    :param state: libvirt's word for its state ('running', 'paused'); None: not reported
    :param job: libvirt's word for its long job ('migration out', 'migration in', 'save',
        'snapshot', 'backup', 'dump'); None: it has none
    :param id: libvirt's id of the running domain; None: not reported
    :param override: the operator's override (:mod:`overrides`), :data:`PIN` or :data:`IGNORE`;
        empty: none
    :param pins: the pins of ``<cputune>``, as (name of the control group, frozenset of CPUs),
        sorted by the names: 'vcpu0', 'emulator', 'iothread1'
    :param memory_max_bytes: RAM that it may grow to (``<maxMemory>``); None: ``memory_bytes``
    :param mem_mode: how numatune gives ``numatune_nodes`` to all of its memory, :data:`STRICT`,
        :data:`PREFERRED` or :data:`INTERLEAVE`; empty: they are not for all of it
    :param partition: its ``<resource><partition>``, which determines the groups above it
    :param granted_cpus, granted_mems: CPUs, and ids of the nodes whose memory, the groups above it
        let it use (:mod:`nova_numa_pmc.host.allowed`); None: all, or not read
    :param emulated: the buses and models of its disks and network cards that QEMU emulates
        ('sata', 'e1000')
    :param start_ns: CLOCK_BOOTTIME at which the process with its ``pid`` began [ns]; None: not
        reported, or no process is known
    """

    uuid: str
    name: str
    vcpus: int
    memory_bytes: int
    vcpus_max: int | None = None
    allowed_cpus: frozenset[int] | None = None
    placed_by: tuple[str, ...] = ()
    pinned_nodes: tuple[int, ...] = ()
    numatune_nodes: tuple[int, ...] = ()
    page_bytes: int | None = None
    locked: bool = False
    devices: tuple[HostDevice, ...] = ()
    extra_specs: tuple[tuple[str, str], ...] = ()
    pid: int | None = None
    pinned_cpus: frozenset[int] | None = None
    flavor: str | None = None
    preallocated: bool = False
    vcpu_tids: tuple[int, ...] = ()
    state: str | None = None
    job: str | None = None
    id: int | None = None
    override: str = ''
    pins: tuple[tuple[str, frozenset[int]], ...] = ()
    memory_max_bytes: int | None = None
    mem_mode: str = ''
    partition: str = '/machine'
    granted_cpus: frozenset[int] | None = None
    granted_mems: frozenset[int] | None = None
    start_ns: int | None = None
    emulated: tuple[str, ...] = ()

    @property
    def limit_cpus(self) -> frozenset[int] | None:
        """Return the CPUs that its XML and the groups above it both allow; None: any."""
        if self.allowed_cpus is None or self.granted_cpus is None:
            return self.granted_cpus if self.allowed_cpus is None else self.allowed_cpus
        return self.allowed_cpus & self.granted_cpus

    @property
    def limit_mems(self) -> frozenset[int] | None:
        """Return the nodes whose memory its XML and the groups above it both allow; None: any."""
        bound_nodes = frozenset(self.numatune_nodes) if self.mem_mode == STRICT else None
        if bound_nodes is None or self.granted_mems is None:
            return self.granted_mems if bound_nodes is None else bound_nodes
        return bound_nodes & self.granted_mems

    @property
    def run_id(self) -> RunId:
        """Return the guest's uuid and pid; this pair changes when it is started again."""
        return self.uuid, self.pid

    @property
    def policy(self) -> str:
        """Return the placement policy of its flavor; an invalid one counts as :data:`AUTO`."""
        policy = dict(self.extra_specs).get(POLICY_KEY)
        return policy if policy in POLICIES else AUTO

    @property
    def pinned_groups(self) -> frozenset[str]:
        """Return the names of the control groups of the threads that the guest's XML pins."""
        return frozenset(name for name, _ in self.pins)


class Promise(Record):
    """Nodes, vCPUs and memory promised to one guest, whether or not it uses them yet.

    :param cpu_nodes: ids of the nodes that its vCPUs are held to; empty: floating over all
    :param mem_nodes: ids of the nodes on which its memory is expected; empty: spread over all
    :param vcpus: vCPUs online now, which load its nodes; 0 if it may use none of the floating
        pool's CPUs
    :param memory_bytes: memory that it has now
    :param bound: whether its memory may come only from ``mem_nodes``, and not from any node
    :param origin: :data:`PLACED` by us, :data:`BY_OTHERS`, or :data:`FLOATING`
    :param since_ns: CLOCK_BOOTTIME at which it was promised; if the guest ran without a promise,
        at which its process began
    :param started: whether its start was seen; if not, the start is in progress
    :param mem_node_bytes: parallel to ``mem_nodes``: how a spanning guest's memory was
        divided when it was promised; empty: not recorded
    :param missed: whether the installed hook failed to place it at its start, so that the agent
        has to place it
    :param l3_cpus: CPUs, ascending, of the L3 cache that it is held to on its nodes
        (:func:`pools.cpus_of_promise`); empty: all CPUs of these nodes that it may use
    :param widened_nodes: while it is widened, ids of the nodes whose CPUs it may use; empty:
        those of ``cpu_nodes``
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
    mem_node_bytes: tuple[int, ...] = ()
    missed: bool = False
    l3_cpus: tuple[int, ...] = ()
    widened_nodes: tuple[int, ...] = ()

    @property
    def held_nodes(self) -> tuple[int, ...]:
        """Return the ids of the nodes that its vCPUs are held to now; empty: all."""
        return self.widened_nodes or self.cpu_nodes

    @property
    def origin_text(self) -> str:
        """Return its origin as text; that of another release may be unknown."""
        return ORIGIN_TEXTS.get(self.origin, self.origin)


class NodeView(Record):
    """One node as the decision sees it: sums only, so that it fits in Nova's metrics.

    :param cores: capacity [cores], SMT siblings at their fraction; 0 for a memory-only node
    :param cpu_count: number of usable CPUs
    :param capacity_bytes: memory that may be promised in normal pages (RAM ratio applied)
    :param promised_bytes: memory that is promised in normal pages
    :param guests: number of guests placed on it; a guest on several nodes is split among them
    :param vcpus: number of vCPUs of these guests, in the same fractions
    :param demand_cores: cores wanted; None: unknown
    :param bandwidth_bytes_per_sec: DRAM traffic served; None: unknown
    :param bandwidth_max_bytes_per_sec: the most DRAM traffic that it can serve; None: unknown, and
        then its utilisation is unknown as well
    :param link_ratio: utilisation of its busiest socket link; None: not counted
    :param huge_free_bytes: (page_bytes, free bytes) pairs
    :param cpus: the usable CPUs; None except on the host itself
    :param remote_ratio: remote ÷ all DRAM accesses of its CPUs; None: unknown, or not published
    :param demand_now_cores: cores wanted in the last interval, where ``demand_cores`` is over a
        longer one; None: unknown, or not published
    """

    id: int
    cores: float
    cpu_count: int
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
    remote_ratio: Share | None = None
    demand_now_cores: float | None = None


class NodeLoad(Record):
    """Measurements of one node, with the fields of :class:`NodeView`; None: unknown.

    :param stolen_cores: CPU time stolen by the host's own hypervisor, to be subtracted from
        ``cores``
    """

    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    bandwidth_max_bytes_per_sec: float | None = None
    link_ratio: float | None = None
    stolen_cores: float | None = None


class PoolLoad(Record):
    """Measurements of one pool, that is, of the CPUs that the same guests may use.

    :param cpus: the CPUs of the pool
    :param loads: (node id, :class:`NodeLoad`), by ascending id; the demand is that on the pool's
        CPUs of the node, and all other figures are those of the whole node
    :param vcpus: (node id, vCPUs of the guests included in these figures), by ascending id
    """

    cpus: frozenset[int]
    loads: tuple[tuple[int, NodeLoad], ...] = ()
    vcpus: tuple[tuple[int, float], ...] = ()


class DemandHistory(Record):
    """Demand of the guests of a host that were measured for long enough.

    :param guests: number of these guests
    :param cores_per_vcpu_sum: the sum of these guests' demand per vCPU [cores]
    :param bytes_per_core_sec: the host's DRAM traffic per core-second of its guests
    """

    guests: float = 0
    cores_per_vcpu_sum: float = 0.0
    bytes_per_core_sec: float | None = None


class HostView(Record):
    """A host as the decision sees it.

    :param nodes: in ascending order of their ids
    :param distances: rows and columns by position [SLIT units, 10 is local]; means between domains
    :param rotation: number of placements made so far, which breaks ties
    :param domains: by position: the lowest position among the nodes that share their memory
        channels with this one; empty: no nodes share any
    """

    nodes: tuple[NodeView, ...]
    distances: tuple[tuple[float, ...], ...]
    rotation: int = 0
    domains: tuple[int, ...] = ()


class Request(Record):
    """A guest that is to be placed.

    :param vcpus: vCPUs that it has now; each needs a thread to run on
    :param memory_bytes: memory that it has now
    :param page_bytes: size of its huge pages; None: normal pages
    :param allowed_cpus: CPUs on which it may run; None: any
    :param device_nodes: ids of the nodes of its devices that lock its memory
    :param policy: one of :data:`POLICIES`
    :param demand_cores: expected demand [cores]; None: derived from its vCPUs
    :param bandwidth_bytes_per_sec: expected traffic; None: unknown
    :param why_alone: code of the reason to leave it alone (:mod:`eligibility`); empty: none
    :param placed_by: elements and extra specs by which others place it
    :param vcpus_max, memory_max_bytes: what it may grow to; None: what it has
    """

    vcpus: int
    memory_bytes: int
    page_bytes: int | None = None
    allowed_cpus: frozenset[int] | None = None
    device_nodes: tuple[int, ...] = ()
    policy: str = AUTO
    demand_cores: float | None = None
    bandwidth_bytes_per_sec: float | None = None
    why_alone: str = ''
    placed_by: tuple[str, ...] = ()
    vcpus_max: int | None = None
    memory_max_bytes: int | None = None

    def allowed_among(self, cpus: frozenset[int]) -> frozenset[int]:
        """Return those of some CPUs on which the guest may run."""
        return cpus if self.allowed_cpus is None else cpus & self.allowed_cpus


class Reason(Record):
    """A reason as data: a code and (name, value) pairs, which become text only when shown."""

    code: str
    values: tuple[tuple[str, object], ...] = ()


class Placement(Record):
    """The place where a guest belongs, or the reasons to leave it alone.

    :param cpu_nodes: node ids, ascending; empty: leave the guest alone, for the given ``reasons``
    :param cpus: CPUs for its ``cpuset.cpus``; None if it is left alone, or not on the host itself
    :param reasons: reasons for the place, the deciding one first
    :param mem_nodes: ids of the nodes on which its memory is expected. ``cpu_nodes`` if it
        fits there: it may be moved there, and bound if the operator wants. For CPU-only nodes, the
        nearest nodes with memory. Otherwise empty: only CPUs are held, and memory stays unbound
    :param mem_node_bytes: parallel to ``mem_nodes``: bytes to promise on each; empty if all are on
        one node, or may be anywhere
    """

    cpu_nodes: tuple[int, ...]
    cpus: frozenset[int] | None = None
    reasons: tuple[Reason, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    mem_node_bytes: tuple[int, ...] = ()


class PlacementOptions(Record):
    """The operator's placement options; ``conf/host_options.py`` describes each.

    :param ram_ratio: Nova's RAM allocation ratio on this host
    :param reserve_bytes: memory of each node that is kept for the host itself
    :param smt_ratio: capacity that an SMT sibling adds to a core [cores]
    :param pressure_floor: pressures below this count as equal
    :param pressure_step: pressures that differ by less than this count as equal
    :param guest_memory_nodes: ids of nodes whose memory is for guests although it is near no CPU
    """

    ram_ratio: float = 1.0
    reserve_bytes: int = 256 << 20
    smt_ratio: float = 0.25
    pressure_floor: float = 0.7
    pressure_step: float = 0.05
    guest_memory_nodes: frozenset[int] = frozenset()
