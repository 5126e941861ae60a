# SPDX-License-Identifier: Apache-2.0
"""Every figure of the arena, in one file: its hash is in the result.

"assumed": no published figure was found, or none that fits. Sources by their short names:

SAP
    Uhlig, Braun, Wählisch: The SAP Cloud Infrastructure Dataset (IMC 2025),
    https://arxiv.org/abs/2510.23911: roughly 1,800 hypervisors and 48,000 guests on Nova over
    30 days; CPU contention above 40 % exists; hosts of up to 99 % CPU beside idle ones; over
    80 % of guests use less than 70 % of what they were given.
bitbrains
    CPU series of 50 guests over 30 days, bitbrains-small of https://github.com/atlarge-research/opendc
    (691036d), from Shen, van Beek, Iosup (CCGrid 2015); by ``tests.arena.fits``.
Azure
    Cortez et al.: Resource Central (SOSP 2017), its public trace (CC-BY) as sizes, batches and
    lifetimes of 1.2 million guests in https://github.com/huaweicloud/trace_generation_rnn
    (fa856db); by ``tests.arena.fits``. The packing trace of 2020 is not fitted: its
    sizes are parts of machines that are not described, and it has no use. ``--trace`` reads it.
SURF
    a week of the Lisa cluster's jobs, surf_week of OpenDC; by ``tests.arena.fits``.
pressure.md
    the project's definitions, doc/source/reference/pressure.rst
"""

import hashlib
import pathlib

GIB_MIB = 1024

# ---- Size of a run -----------------------------------------------------------------------

HOSTS = 150  # assumed: what fits into the time; SAP's building blocks are smaller clusters
#: The region is filled, then judged [s].
FILL_S, JUDGED_S = 9000, 3.5 * 3600
TICK_S = 60
#: SAP: 48,000 / 1,800 = 27 guests a hypervisor; HOSTS of our sizes hold 8 to 25.
SEEDS_TUNING = range(1, 101)
SEEDS_TABLE = range(1001, 1006)

# ---- Hosts -------------------------------------------------------------------------------

#: nodes, cores of a node, MiB of a node, bytes/s of a node's memory. Assumed: two sockets of
#: 24 cores, 256 GiB and six channels each; generations at a half and at twice of it.
EQUAL = ((2, 24, 256 * GIB_MIB, 100e9),)
MIXED = (
    (2, 12, 128 * GIB_MIB, 60e9),
    (2, 24, 256 * GIB_MIB, 100e9),
    (2, 48, 512 * GIB_MIB, 200e9),
)
#: Two clusters a socket. Eight nodes cost the twin of our weigher minutes a run.
SUBNUMA = ((4, 12, 128 * GIB_MIB, 50e9),)
THREADS_PER_CORE = 2
#: What a sibling adds to its core (pressure.md).
SMT_RATIO = 0.25
#: Of a host's CPUs, those for dedicated guests where hosts have both pools. Assumed.
DEDICATED_RATIO = 0.25
#: SLIT: the own node, another of the socket, another socket. Assumed, as firmware has them.
DISTANCES = (10, 12, 21)
#: Of the machine whose documents began the project: 60 ns local, 100 ns remote.
LOCAL_NS = 60.0
#: Between an own and another node of a socket: assumed.
NS_PER_DISTANCE = (100.0 - 60.0) / (21 - 10)
#: Misses that a core waits for together (pressure.md).
MLP = 4.0
DISK_GB = 8000  # assumed
#: Nova's defaults: 4.0 for CPUs; RAM 1.0 since 2023, as most operators of large guests.
CPU_RATIO, RAM_RATIO = 4.0, 1.0
RESERVED_MIB = 512  # Nova's reserved_host_memory_mb

# ---- What is known of hosts --------------------------------------------------------------

WITHOUT_AGENT = 0.05
BROKEN = 0.01
#: Where few hosts have an agent, at most this part of these is broken.
BROKEN_OF_KNOWN = 0.1
BROKEN_KINDS = ('absurd', 'stale', 'zero', 'skewed')
ABSURD_FACTOR, SKEW_S = 1000.0, 600.0
AUDIT_S = 60  # Nova's update_resources_interval
#: The compute monitor's defaults (compute/metrics_encoder.py); 0: send at each audit.
DEADBAND, HEARTBEAT_S = 0.03, 600
#: Phases of audits within AUDIT_S.
PHASES = 4
#: Horizons of guests' histories (nova_numa_pmc/core/demand.py) [s].
MINUTES_S, DAY_S = 900.0, 86400.0
#: Younger guests are charged what is expected of a new one, if that is more: half a core a
#: vCPU, and what the host's guests want, of which these five count as much (pressure.md).
SETTLING_S, PRIOR_CORES_PER_VCPU, PRIOR_GUESTS = 120.0, 0.5, 5
#: From this age on, a guest counts in what is expected of others (nova_numa_pmc/core/demand.py).
REPRESENTATIVE_S = 300.0
#: Standard deviation of a published demand, as a part of it. Assumed.
NOISE = 0.03

#: A host with a node that is pressed more than this, or with a guest on several nodes, moves a
#: guest so often [s] if that saves so much [cores], of so many guests that are tried: the floor is
#: pressure.md's, the others assumed.
MOVE_FLOOR, MOVE_EVERY_S = 0.7, 300
MOVE_GAIN, MOVE_TRIED = 0.1, 6

#: Plans of the fleet: so many moves and MiB each time [s]; memory is copied again where it was
#: dirtied meanwhile, so that a migration takes so much longer; a guest is stopped at its end [s].
#: Assumed.
RELIEF_EVERY_S, RELIEF_MOVES, RELIEF_MIB, RELIEF_DIRTIED, RELIEF_STOPPED_S = (
    300,
    2,
    256 * GIB_MIB,
    1.5,
    1.0,
)

# ---- Guests ------------------------------------------------------------------------------

#: vCPUs, MiB, GB of disk, weight. Assumed: Azure's guests are smaller (45 % of one vCPU, 0.01 %
#: of 16, the largest there), SAP's larger, of which no shares are published.
FLAVORS = (
    (1, 2 * GIB_MIB, 20, 4),
    (2, 4 * GIB_MIB, 20, 12),
    (2, 8 * GIB_MIB, 20, 14),
    (4, 8 * GIB_MIB, 40, 12),
    (4, 16 * GIB_MIB, 40, 18),
    (8, 16 * GIB_MIB, 80, 8),
    (8, 32 * GIB_MIB, 80, 16),
    (16, 64 * GIB_MIB, 80, 11),
    (32, 96 * GIB_MIB, 160, 4),
    (64, 128 * GIB_MIB, 160, 1),
)
LARGE_VCPUS = 32
#: Of guests up to a size, those that ask for dedicated CPUs where hosts have some. Assumed.
DEDICATED_GUESTS, DEDICATED_VCPUS_MAX = 0.2, 16
#: Short-lived guests that come in an hour, as a part of those that are there, and their mean
#: lifetime; the others'. Azure: of those that come 63 % live less than an hour (here 57), 77 %
#: less than four (90), 92 % less than a day (92). How many come is assumed.
SHORT_PER_HOUR, SHORT_S = 0.08, 3600.0
LONG_PER_HOUR, LONG_S = 0.01, 72 * 3600.0
#: Batches: of all, those of several guests, of one flavor, and how many these are on average
#: (Azure); within so many seconds (assumed). Their numbers in five minutes then vary as they do
#: there: variance / mean is 65 in Azure's trace, 35 in SURF's, of larger regions.
BATCHES, BATCH_MEAN, BATCH_S = 0.43, 7.5, 60.0
#: Of guests, those of one request for several instances, and for how many. Assumed.
MULTI_CREATE, MULTI_COUNT = 0.02, 5
#: Bounds of building a guest and of the time until a claim is in the database [s].
BUILD_S, VISIBLE_S = (5.0, 180.0), (1.0, 10.0)
STORM_GUESTS_PER_HOST = 0.67  # assumed: a hundred on 150 hosts, within a minute

#: Of a region's RAM, what long-lived guests are promised at the end of filling (assumed; with the
#: others it is 0.65, 0.78 and 0.86), and the mean cores per vCPU before they are cut at 1: 0.086
#: (bitbrains); two and three times as much are assumed, so that, as SAP tells, most guests use
#: little, while some hosts are saturated.
LOADS = {'calm': (0.60, 0.09), 'mixed': (0.72, 0.24), 'hot': (0.80, 0.32)}
#: Spread of a guest's mean cores per vCPU (of its logarithm): where load follows allocation
#: (assumed), and where it does not: 1.53 among guests that are not idle (bitbrains). All but a few
#: are then below 70 % of use, as 100 % are there; SAP tells of more than 80 %.
SIGMA = {'allocation': 0.25, 'other': 1.5}
#: It falls with the size, as vCPUs ** −this: a large guest is many processes. Assumed.
SIGMA_FALL = 0.15
#: Change of it with the time: the day's, and a guest's own (of the logarithm), which after half
#: an hour is 0.76 of what it was (bitbrains, medians).
DAY_AMPLITUDE, OWN_SIGMA, OWN_S, SLOT_S = 0.11, 0.59, 6500.0, 300
#: Where loads come back each day: how much they change with it, how much guests' days differ
#: (standard deviation, a sixth of a day) [radians], and hosts, a day of filling, then half a day
#: that is judged [s]. Assumed.
DAYS_AMPLITUDE, DAYS_SPREAD = 0.9, 1.05
DAYS_HOSTS, DAYS_FILL_S, DAYS_JUDGED_S = 60, 24 * 3600, 12 * 3600
#: Correlation of a guest's vCPUs within an interval: bursts. Assumed.
BURST = 0.15
#: DRAM lines per core-second: the median, its spread; 64 bytes each. Assumed: 0.64 GB/s a core.
LINES, LINES_SIGMA = 1e7, 0.8

# ---- Scheduler ---------------------------------------------------------------------------

WORKERS = 4
#: A decision: so long, and so much a host [s]. Measured with Nova 34 on 1,000 hosts: 1.1.
DECIDE_S, DECIDE_HOST_S = 0.2, 0.0009
CANDIDATES = 1000  # Nova's [scheduler] max_placement_results

# ---- Rivals ------------------------------------------------------------------------------

#: Those of their settings that trials found better than the published or assumed one, beyond
#: chance: the target utilisation of TargetLoadPacking (Trimaran's default is 40) [%], and among
#: how many of the least pressed hosts one is drawn (10 was assumed).
TARGET_PERCENT, LEAST_PRESSED = 20, 20

# ---- Statistics --------------------------------------------------------------------------

#: A duel is won if the loss is not above the rival's by this part of it, with 95 % confidence, and
#: undecided with fewer seeds than these: Student's factor for two is 12.7.
MARGIN, SEEDS_LEAST = 0.05, 3
#: Where stock and the oracle are nearer than this part of stock's loss, there is no gap to close.
LEAST_GAP = 0.03
#: Decisions that the referee takes again, at least.
REFEREED = 10000


def digest():
    """Return the hash of this file."""
    return hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:12]
