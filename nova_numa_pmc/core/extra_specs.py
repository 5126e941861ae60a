# SPDX-License-Identifier: Apache-2.0
"""Parse a flavor's extra specs in the namespace ``numa_pmc``.

This module imports only light modules, because the libvirt hook uses it for the extra specs that
Nova writes into a domain's metadata.
"""

from __future__ import annotations

from nova_numa_pmc import model
from nova_numa_pmc.core.host_view import DEFAULT_INTENSITY, INTENSITY, INTENSITY_KEY
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

MAX_PRESSURE_KEY = model.EXTRA_SPEC_PREFIX + 'max_pressure'
KEYS = (model.POLICY_KEY, MAX_PRESSURE_KEY, INTENSITY_KEY)
#: Highest value of ``numa_pmc:max_pressure``; 1 is saturated.
MAX_PRESSURE_MAX = 64.0

#: Extra specs with which Nova itself pins a guest to nodes or CPUs (nova/virt/hardware.py,
#: numa_get_constraints); Nova's NUMATopologyFilter then decides where.
_NOVA_NUMA = ('hw:numa_nodes', 'hw:mem_page_size')


class FlavorSpecs(Record):
    """A flavor's extra specs in our namespace, checked.

    :param policy: one of :data:`model.POLICIES`
    :param max_pressure: highest pressure that the guest may leave on its nodes; None: the
        operator's option applies
    :param memory_intensity: a key of :data:`nova_numa_pmc.core.host_view.INTENSITY`
    :param problems: which specs are ignored, and why
    """

    policy: str = model.AUTO
    max_pressure: float | None = None
    memory_intensity: str = DEFAULT_INTENSITY
    problems: tuple[str, ...] = ()


def parse(extra_specs: Mapping[str, str] | Iterable[tuple[str, str]]) -> FlavorSpecs:
    """Parse a flavor's extra specs; a malformed value is ignored and reported in ``problems``.

    :param extra_specs: a mapping, or (key, value) pairs such as :attr:`model.Guest.extra_specs`
    """
    flavor_specs: dict[str, Any] = {}
    problems = []
    for key, value in dict(extra_specs).items():
        if not key.startswith(model.EXTRA_SPEC_PREFIX):
            continue
        try:
            flavor_specs[key[len(model.EXTRA_SPEC_PREFIX) :]] = check(key, value)
        except ValueError as error:
            problems.append(str(error))
    return FlavorSpecs(problems=tuple(problems), **flavor_specs)


def check(key: str, value: str) -> str | float:
    """Return an extra spec's value, converted to its type.

    :param key: one of :data:`KEYS`
    :raises ValueError: the key is unknown or the value is invalid; the message lists what is valid
    """
    if key == model.POLICY_KEY:
        return _choice(key, value, model.POLICIES)
    if key == INTENSITY_KEY:
        return _choice(key, value, tuple(INTENSITY))
    if key == MAX_PRESSURE_KEY:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        # Written so that NaN, for which every comparison is false, is refused.
        if not 0.0 < number <= MAX_PRESSURE_MAX:
            raise ValueError(
                '%s=%.80r: must be a value above 0 and at most %g' % (key, value, MAX_PRESSURE_MAX)
            )
        return number
    raise ValueError('%.80r: no such extra spec; the known ones are %s' % (key, ', '.join(KEYS)))


def pinning_specs(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return the extra specs with which Nova itself pins the guest to nodes or CPUs.

    :returns: {key: value}; empty if Nova does not pin the guest
    """
    specs = {key: extra_specs[key] for key in _NOVA_NUMA if extra_specs.get(key)}
    if extra_specs.get('hw:cpu_policy') in model.DEDICATED_POLICIES:
        specs['hw:cpu_policy'] = extra_specs['hw:cpu_policy']
    specs.update(item for item in extra_specs.items() if _dedicates_cpus(*item))
    return specs


def dedicate_all(extra_specs: Mapping[str, str]) -> bool:
    """Return whether extra specs have Nova dedicate a CPU to each of the guest's vCPUs.

    Nova refuses a guest with fewer PCPUs than vCPUs.
    """
    return extra_specs.get('hw:cpu_policy') == 'dedicated' or any(
        _dedicates_cpus(*item) for item in extra_specs.items()
    )


def shared_vcpus(vcpus: float, extra_specs: Mapping[str, str], topology: Any) -> float:
    """Return how many vCPUs of a guest that Nova pins have no CPU of their own.

    :param topology: its InstanceNUMATopology, whose ``cpuset`` contains only such vCPUs (since
        version 1.5 of InstanceNUMACell; Nova converts older ones when it loads them). Saved
        requests have none, so mixed guests are then taken to have no CPUs of their own
    """
    if dedicate_all(extra_specs):
        return 0
    if topology is None:
        return vcpus
    return sum(len(cell.cpuset) for cell in topology.cells)


def _dedicates_cpus(key: str, value: str) -> bool:
    """Return whether an extra spec requests PCPUs, in any group (``resources2:PCPU``)."""
    group, _, resource_class = key.partition(':')
    return (
        resource_class == 'PCPU'
        and group.rstrip('0123456789') == 'resources'
        and value not in ('', '0')
    )


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError('%s=%.80r: must be one of %s' % (key, value, ', '.join(choices)))
    return value
