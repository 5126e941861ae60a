# SPDX-License-Identifier: Apache-2.0
"""The nouns that the core, the host's edge and Nova's adapters share.

Immutable records, and no data classes, because the libvirt hook imports this
module at every guest start: importing ``dataclasses`` alone more than doubles
the hook's process time.

Units are in the names. ``None`` means unknown, never 0. Node ids are the
kernel's; CPUs are the kernel's logical CPU numbers in frozensets.
"""

from nova_numa_pmc.record import Record

#: How a flavor or an operator wants a guest placed (``numa_pmc:policy``).
AUTO, SPREAD, ONE_NODE, NONE = 'auto', 'spread', 'one_node', 'none'
POLICIES = (AUTO, SPREAD, ONE_NODE, NONE)
#: Who chose a guest's place: we, others, nobody.
PLACED, PINNED, FLOATING = 'placed', 'pinned', 'floating'


class HugePages(Record, fields='page_bytes total free'):
    """A node's pool of huge pages of one size: size [bytes], pages in all, pages free."""

    __slots__ = ()


class Node(Record, fields=(
        'id cpus memory_bytes free_bytes unreclaimable_bytes huge_pages online_cpus usable_cpus'),
        defaults=(0, 0, 0, (), frozenset(), frozenset())):
    """One NUMA node as the kernel shows it.

    :param cpus: frozenset of CPUs that plain guests may use, those of the floating pool
        (:mod:`pools`); empty for a memory-only node
    :param memory_bytes: MemTotal; 0 for a CPU-only node
    :param free_bytes: MemFree now
    :param unreclaimable_bytes: what the kernel can't give back (slab, page tables, stacks)
    :param huge_pages: tuple of :class:`HugePages`
    :param online_cpus: frozenset of ``cpus`` and those kept from guests that nobody pinned
    :param usable_cpus: frozenset of what a ``<vcpu cpuset>`` may give a guest: online, neither
        isolated nor nohz_full, in the guests' partition
    """

    __slots__ = ()


class Topology(Record, fields='nodes distances cores'):
    """A host: its nodes in ascending id order.

    :param nodes: tuple of :class:`Node`
    :param distances: tuple of tuples of SLIT distances, by *position* in ``nodes`` (row: from)
    :param cores: tuple of frozensets, the SMT siblings of each physical core
    """

    __slots__ = ()


class Guest(Record, fields=(
        'uuid name vcpus memory_bytes vcpus_max allowed_cpus placed_by cpu_nodes mem_nodes '
        'page_bytes locked devices iothreads hints pid pinned_cpus flavor preallocated vcpu_tids '
        'host_devices state job id override pins'),
        defaults=(None, None, (), (), (), None, False, (), 0, (), None, None, None, False, (),
                  (), None, None, None, '', ())):
    """A libvirt domain, as its XML describes it.

    :param vcpus: vCPUs online at start; ``vcpus_max`` the most it may plug (None: the same)
    :param memory_bytes: what it may grow to (maxMemory, else memory): its *promise*
    :param allowed_cpus: frozenset of ``<vcpu cpuset>``, or None where the XML sets none
    :param placed_by: tuple of what others have placed already ('numatune', 'vcpupin',
        'emulatorpin', 'dedicated'…); empty: ours to place
    :param cpu_nodes, mem_nodes: node ids named by such pins where the XML tells them
        (mem_nodes from numatune); empty: not told
    :param page_bytes: huge page size its memory is backed by, None: normal pages
    :param locked: memory that can't move (``<locked/>``, SEV, VFIO)
    :param devices: tuple of PCI addresses ('0000:3b:00.1') of its host devices
    :param hints: tuple of (key, value) pairs, sorted: the flavor's ``numa_pmc:*`` extra specs
    :param pid: QEMU's process where known (status files), else None
    :param pinned_cpus: frozenset, the union of the CPUs that others pinned its vCPUs to;
        None: not pinned. ``cpu_nodes`` follows from it and the topology
    :param flavor: name of Nova's flavor, None: not Nova's or not told
    :param preallocated: its memory lies before its CPUs run (``<allocation
        mode='immediate'/>``); so does that of a guest with ``locked`` or ``page_bytes``
    :param vcpu_tids: thread ids of its vCPUs where known (status files), ascending
    :param host_devices: tuple of the host's devices that it uses beside these, sorted:
        network interfaces below macvtap ('eth0') and block devices ('/dev/nvme0n1')
    :param state: libvirt's word for its state ('running', 'paused'), None: not told
    :param job: libvirt's word for its long job ('migration out', 'migration in', 'save',
        'snapshot', 'backup', 'dump'), None: it has none
    :param id: libvirt's number of it while it runs, None: not told
    :param override: what the operator has said of it (:mod:`overrides`): 'pin', 'ignore',
        '' nothing
    :param pins: tuple of (control group's name: 'vcpu0', 'emulator', 'iothread1'; frozenset of
        CPUs) of ``<cputune>``'s pins, sorted by name
    """

    __slots__ = ()


class Promise(Record, fields=(
        'uuid name cpu_nodes mem_nodes vcpus memory_bytes page_bytes bound origin since_ns '
        'started mem_bytes missed'),
        defaults=(None, False, 'placed', 0, False, (), False)):
    """What a host has promised to one guest, whether or not it has touched it yet.

    :param cpu_nodes: tuple of node ids its vCPUs are held to; empty: floating over all
    :param mem_nodes: tuple of node ids its memory is expected on; empty: spread over all
    :param vcpus: those online at start, which load its nodes; 0 if it may use none of the CPUs
        that plain guests use
    :param memory_bytes: what it may grow to
    :param bound: its memory is hard-bound to ``mem_nodes`` (else wide at rest)
    :param origin: :data:`PLACED` by us, :data:`PINNED` by others, :data:`FLOATING`
    :param since_ns: CLOCK_BOOTTIME when promised
    :param started: its start was seen (else it is a reservation of a start in progress)
    :param mem_bytes: tuple parallel to ``mem_nodes``: how a spanning guest's memory was
        divided when promised; empty: not recorded
    :param missed: the hook was there when it started and could not place it: the agent does
    """

    __slots__ = ()


class NodeView(Record, fields=(
        'id cores threads capacity_bytes promised_bytes guests vcpus demand_cores '
        'bandwidth_bytes_per_sec bandwidth_max_bytes_per_sec link_ratio huge_free_bytes cpus'),
        defaults=(0, 0, None, None, None, None, (), None)):
    """One node as the decision sees it: aggregates only, so that it fits in Nova's metrics.

    :param cores: capacity C_n [cores], SMT siblings at their fraction; 0 for a memory-only node
    :param threads: usable CPUs
    :param capacity_bytes: what may be promised in normal pages (ram ratio applied)
    :param promised_bytes: what is promised in normal pages
    :param guests: guests whose home it is (float: a spanning guest counts in parts)
    :param vcpus: their vCPUs (float likewise)
    :param demand_cores: D_n [cores] wanted, None: unknown
    :param bandwidth_bytes_per_sec: DRAM traffic served, None: unknown
    :param bandwidth_max_bytes_per_sec: None: unknown, and then so is its utilisation
    :param link_ratio: utilisation of its busiest socket link, None: not counted
    :param huge_free_bytes: tuple of (page_bytes, bytes free) pairs
    :param cpus: frozenset of usable CPUs on the host itself; None off the host
    """

    __slots__ = ()


class NodeLoad(Record, fields=(
        'demand_cores bandwidth_bytes_per_sec bandwidth_max_bytes_per_sec link_ratio '
        'stolen_cores'), defaults=(None, None, None, None, None)):
    """What was measured on one node; the fields are :class:`NodeView`'s, None: unknown.

    :param stolen_cores: what the host's own hypervisor gave to others; it comes off ``cores``
    """

    __slots__ = ()


class PoolLoad(Record, fields='cpus loads vcpus', defaults=((), ())):
    """What was measured of one pool of CPUs: those that the same guests may use.

    :param cpus: frozenset of its CPUs
    :param loads: tuple of (node id, :class:`NodeLoad`), ascending ids; the demand is what the
        pool's CPUs on that node are wanted for, the rest is of the whole node
    :param vcpus: tuple of (node id, vCPUs of the guests that are in these figures), likewise
    """

    __slots__ = ()


class History(Record, fields='cores_per_vcpu bytes_per_core_sec', defaults=((), None)):
    """What earlier guests of a flavor used (else: all guests of the host).

    :param cores_per_vcpu: tuple of κ_i, one per guest [cores]
    :param bytes_per_core_sec: the host's DRAM traffic per core-second of its guests
    """

    __slots__ = ()


class HostView(Record, fields='nodes distances rotation', defaults=(0,)):
    """A host as the decision sees it.

    :param nodes: tuple of :class:`NodeView`, ascending id
    :param distances: tuple of tuples by position, SLIT units (10: local)
    :param rotation: how many placements came before; breaks ties between equals
    """

    __slots__ = ()


class Request(Record, fields=(
        'vcpus memory_bytes page_bytes allowed_cpus device_nodes policy demand_cores '
        'bandwidth_bytes_per_sec placed_by'),
        defaults=(None, None, (), AUTO, None, None, ())):
    """A guest that asks for a place.

    :param vcpus: the most it may have; each needs a thread to run on
    :param memory_bytes: what it may grow to
    :param page_bytes: huge page size, None: normal pages
    :param allowed_cpus: frozenset it may run on, None: any
    :param device_nodes: tuple of node ids of its devices
    :param policy: one of :data:`POLICIES`
    :param demand_cores: ĉ [cores], None: derived from vCPUs
    :param bandwidth_bytes_per_sec: b̂, None: unknown
    :param placed_by: what others have placed already, as in :class:`Guest`
    """

    __slots__ = ()


class Reason(Record, fields='code values', defaults=((),)):
    """Why, as data: a code and (name, value) pairs; rendered only when somebody reads it."""

    __slots__ = ()


class Placement(Record, fields='nodes cpus bind reasons mem_nodes mem_bytes',
                defaults=(None, False, (), (), ())):
    """Where a guest belongs.

    :param nodes: tuple of node ids, ascending; empty: leave it alone, ``reasons`` say why
    :param cpus: frozenset for its ``cpuset.cpus``; None off the host or when left alone
    :param bind: memory fits on ``nodes`` (it may be brought over, or bound by choice);
        False: its CPUs only, memory stays wide
    :param reasons: tuple of :class:`Reason`, the deciding one first
    :param mem_nodes: tuple of node ids where the memory is expected: ``nodes`` where it fits
        there, the nearest nodes with memory of a CPU-only node, else empty (anywhere)
    :param mem_bytes: tuple parallel to ``mem_nodes``, what to promise on each; empty where
        that is on one node, or anywhere
    """

    __slots__ = ()


class Limits(Record, fields=(
        'ram_ratio reserve_bytes smt_ratio domain_distance pressure_floor pressure_step'),
        defaults=(1.0, 256 << 20, 0.25, 12, 0.7, 0.05)):
    """The operator's knobs of the decision; ``conf.py`` describes each option.

    :param ram_ratio: Nova's RAM allocation ratio on this host
    :param reserve_bytes: per node, kept for the host itself
    :param smt_ratio: s, what an SMT sibling adds to a core [cores]
    :param domain_distance: nodes nearer than this share their memory channels
        and form one placement domain (SLIT units)
    :param pressure_floor: below this a node is simply fine
    :param pressure_step: pressures closer than this are equal
    """

    __slots__ = ()
