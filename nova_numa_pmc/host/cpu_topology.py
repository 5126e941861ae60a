# SPDX-License-Identifier: Apache-2.0
"""Read the L3 caches and sockets of CPUs, from sysfs.

The libvirt hook reads these at every guest start: one file for each L3 cache and, on a host with
several nodes, one more for each node. A value that is not reported, or not in a form that
is understood, is unknown and never prevents a guest from starting.

Formats: the kernel's Documentation/ABI/testing/sysfs-devices-system-cpu (``cache/indexN``) and
Documentation/ABI/stable/sysfs-devices-system-cpu (``topology``).
"""

from __future__ import annotations

from nova_numa_pmc.core.cache_hierarchy import one_l3_positions
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import TopologyError
from nova_numa_pmc.host import files
from nova_numa_pmc.host.files import CPUS

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc import model

    #: The CPUs of each L3 cache.
    _L3s = tuple[frozenset[int], ...]

_CPU = CPUS + '/cpu%d/'
_L3 = 'cache/index3/'
#: Enough for every file read here: /proc/cpuinfo has the vendor within its first 100 bytes.
_READ_MAX_BYTES = 4096


def read(host: model.Topology, root: str = '/') -> model.Topology:
    """Return a host with its L3 caches, sockets and vendor filled in.

    :param host: as returned by :func:`topology.read`
    """
    with_cpus = [node.online_cpus for node in host.nodes if node.online_cpus]
    if not with_cpus:
        return host
    l3s: tuple[_L3s, ...] = ()
    if _text(root, _CPU % min(with_cpus[0]) + _L3 + 'level') == '3':
        online = host.online_cpus
        known_l3s: list[frozenset[int]] = []
        l3s = tuple(_l3s_of(node.online_cpus, online, known_l3s, root) for node in host.nodes)
    host = host._replace(
        l3s=l3s,
        sockets=tuple(
            socket(min(node.online_cpus), root) if node.online_cpus else None
            for node in host.nodes
        )
        if len(with_cpus) > 1
        else (),
    )
    # Reading /proc/cpuinfo may wait 10 ms for the CPUs' frequencies (arch_freq_prepare_all() of
    # 4.14 to 5.16), so the vendor is read only where it matters.
    return host._replace(vendor=_vendor(root)) if one_l3_positions(host) else host


def _l3s_of(
    cpus: frozenset[int], online: frozenset[int], known_l3s: list[frozenset[int]], root: str
) -> _L3s:
    """Return the L3 caches of some CPUs, or () if one of the CPUs does not report its cache.

    :param known_l3s: the caches found so far, to which new ones are appended
    """
    l3s: list[frozenset[int]] = []
    remaining = cpus
    while remaining:
        cpu = min(remaining)
        cache = next((l3 for l3 in known_l3s if cpu in l3), None)
        if cache is None:
            cache = files.optional_cpus(root, _CPU % cpu + _L3 + 'shared_cpu_list') & online
            if cpu not in cache:
                return ()
            known_l3s.append(cache)
        l3s.append(cache)
        remaining = remaining - cache
    return tuple(l3s)


def l3_id(cpu: int, root: str = '/') -> int | None:
    """Return the id of a CPU's L3 cache, or None if not reported."""
    for index in (3, 2, 4):
        cache = _CPU % cpu + 'cache/index%d/' % index
        if _text(root, cache + 'level') == '3':
            text = _text(root, cache + 'id')
            if is_number(text):
                return int(text)
    return None


def socket(cpu: int, root: str = '/') -> int | None:
    """Return the id of a CPU's socket, or None if not reported."""
    text = _text(root, _CPU % cpu + 'topology/physical_package_id')
    return int(text) if is_number(text, 9) else None


def _vendor(root: str) -> str:
    for line in _text(root, 'proc/cpuinfo').splitlines():
        name, _, value = line.partition(':')
        if name.strip() == 'vendor_id':
            return value.strip()
    return ''


def _text(root: str, path: str) -> str:
    """Return the beginning of a file, or '' if it does not exist or cannot be read."""
    try:
        return files.read_text(root, path, _READ_MAX_BYTES) or ''
    except TopologyError:
        return ''
