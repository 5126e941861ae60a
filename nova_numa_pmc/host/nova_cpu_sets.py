# SPDX-License-Identifier: Apache-2.0
"""Read the host's CPUs from Nova's configuration: ``cpu_shared_set`` and ``cpu_dedicated_set``.

As in Nova, ``vcpu_pin_set`` takes precedence over the former (``_get_vcpu_available`` in
nova/virt/libvirt/driver.py). Guests may also be pinned to its CPUs.

This module is for the agent and the commands. The libvirt hook cannot afford to import
oslo.config, and reads what the agent has published.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc.cpulist import CPUS_MAX
from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.host import domain_values, nova_conf, services
from nova_numa_pmc.host.files import identity
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from nova_numa_pmc.host.files import Identity

#: The option of the dedicated CPUs, and its group.
DEDICATED_SET = 'cpu_dedicated_set', 'compute'
#: How often to check whether nova-compute's files have changed.
_AGE_MAX_NS = 60 * 10**9
#: How often to search for nova-compute's process while none is known that is running; a search
#: reads all of procfs.
_SEARCH_AGE_MAX_NS = 600 * 10**9


class NovaCpuSets(Record):
    """Nova's two sets of CPUs.

    :param shared: the CPUs of ``vcpu_pin_set`` or, if that is not set, of ``cpu_shared_set``
    :param dedicated: the CPUs of ``cpu_dedicated_set``; each is None if the option is not set or
        cannot be read
    """

    shared: frozenset[int] | None = None
    dedicated: frozenset[int] | None = None


class NovaCpuSetsReader:
    """Reads both sets, and parses the files again only if one of them has changed.

    :param root: root of the host's file system
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._sets = NovaCpuSets()
        self._problems: tuple[str, ...] = ()
        self._process: services.Process | None = None
        self._searched_ns: int | None = None
        self._read_ns: int | None = None
        self._identities: tuple[object, ...] = ()

    def read(self, monotonic_ns: int) -> tuple[NovaCpuSets, tuple[str, ...]]:
        """Return (:class:`NovaCpuSets`, problems).

        :param monotonic_ns: CLOCK_MONOTONIC
        """
        if self._read_ns is not None and 0 <= monotonic_ns - self._read_ns < _AGE_MAX_NS:
            return self._sets, self._problems
        self._read_ns = monotonic_ns
        is_running = self._search(monotonic_ns)
        if self._process and not (is_running or self._process.same_root):
            self._searched_ns = None  # its container is being restarted; its pid may be another's
            return self._sets, self._problems
        files = nova_conf.files_of(self._process, services.NOVA_COMPUTE, self._root)
        trust = nova_conf.trust_in(self._process, self._root)
        files = [path for path in files if os.path.lexists(path)]
        identities = tuple(
            (_identity(path), trust.find_changeable(path[len(trust.base) :])) for path in files
        )
        if identities != self._identities:
            self._identities = identities
            self._sets, self._problems = parse(nova_conf.NovaConf(files, trust))
        return self._sets, self._problems

    def _search(self, monotonic_ns: int) -> bool:
        """Search for nova-compute from time to time; return whether it is running."""
        if self._process is not None and services.is_running(self._root, self._process):
            return True
        if self._searched_ns is not None and monotonic_ns - self._searched_ns < _SEARCH_AGE_MAX_NS:
            return False
        self._searched_ns = monotonic_ns
        process = services.find(self._root, services.NOVA_COMPUTE)
        # While it is stopped, its last command line is the best guess.
        self._process = process or self._process
        return process is not None


def shared_set(conf: nova_conf.NovaConf) -> tuple[str, str]:
    """Return the option from which Nova takes the shared CPUs, and its group."""
    if conf.get('vcpu_pin_set'):
        return 'vcpu_pin_set', 'DEFAULT'
    return 'cpu_shared_set', 'compute'


def parse(conf: nova_conf.NovaConf) -> tuple[NovaCpuSets, tuple[str, ...]]:
    """Return (:class:`NovaCpuSets`, problems) from nova-compute's configuration."""
    problems: list[str] = []
    sets: list[frozenset[int] | None] = []
    for name, group in (shared_set(conf), DEDICATED_SET):
        try:
            text = conf.get(name, group)
            sets.append(parse_set(name, text) if text else None)
        except DomainError as error:
            problems.append(
                '%s: [%s] %s: write it as 4-12,^8,15' % (conf.first_file, group, error)
            )
            sets.append(None)
    problems += ['%s: %s' % (finding.message, finding.remedy) for finding in conf.findings]
    shared, dedicated = sets
    return NovaCpuSets(shared, dedicated), tuple(problems)


def parse_set(name: str, text: str) -> frozenset[int]:
    """Return a set of CPUs as Nova reads it (``parse_cpu_spec`` in nova/virt/hardware.py).

    Unlike in libvirt's syntax, items may be empty, ranges can be excluded, and an exclusion
    applies to the items after it as well.

    :raises DomainError: Nova refuses the text as well, or a number is beyond CPUS_MAX
    """
    included, excluded = 0, 0  # bits, because lists may repeat ranges without limit
    for item in filter(None, map(str.strip, text.split(','))):
        first, dash, last = item.removeprefix('^').partition('-')
        low = domain_values.parse_integer(name, first, 0, CPUS_MAX - 1)
        high = domain_values.parse_integer(name, last, low, CPUS_MAX - 1) if dash else low
        bits = (1 << high + 1) - (1 << low)
        if item.startswith('^'):
            excluded |= bits
        else:
            included |= bits
    cpus = included & ~excluded
    if not cpus:
        raise DomainError('%s: %a has no CPU' % (name, text[:40]))
    return frozenset(cpu for cpu in range(cpus.bit_length()) if cpus >> cpu & 1)


def _identity(path: str) -> tuple[str, Identity | None]:
    try:
        return path, identity(path)
    except OSError:
        return path, None
