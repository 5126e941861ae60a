# SPDX-License-Identifier: Apache-2.0
"""Read Nova's RequestSpec.

Imports nothing of Nova: its argument has the same attributes, from Nova or from a file.
"""

from __future__ import annotations

from typing import Any, Protocol

from nova_numa_pmc import extra_specs, model
from nova_numa_pmc.core.host_view import INTENSITY, POLICY_KEY
from nova_numa_pmc.core.scheduling.outcome import ExpectedGuest, expected_guest
from nova_numa_pmc.record import Record


class FlavorLike(Protocol):
    """Fields read of a flavor; ``extra_specs`` where it is set."""

    @property
    def vcpus(self) -> int:
        """Return its number of vCPUs."""

    @property
    def memory_mb(self) -> int:
        """Return its memory [MiB]."""


class RequestSpecLike(Protocol):
    """Fields read of a RequestSpec, with those of :func:`_read_optional` where they are set."""

    @property
    def flavor(self) -> FlavorLike:
        """Return the guest's flavor."""


class GuestRequest(Record):
    """A request for one guest, as far as it matters here.

    :param guest: the requested guest; None: the request was not understood
    :param instance_uuid: of the guest that is to move, be resized…
    :param neutral: why hosts are not compared for it, None: they are
    :param pinned: the extra specs by which Nova itself pins it; None: it does not. As the nodes
        that Nova will choose are unknown here, the guest is assumed to use all, and refusing hosts
        is left to NUMATopologyFilter
    :param is_soft: it belongs to a server group with soft affinity or soft anti-affinity
    :param is_move: it is to leave a host, as in an evacuation or in that host's maintenance, and
        has to find another
    """

    guest: ExpectedGuest | None = None
    instance_uuid: str | None = None
    neutral: str | None = None
    flavor_specs: extra_specs.FlavorSpecs = extra_specs.FlavorSpecs()
    pinned: str | None = None
    is_move: bool = False
    is_soft: bool = False


def read(spec: RequestSpecLike) -> GuestRequest:
    """Read a RequestSpec; one that cannot be understood is neutral."""
    try:
        flavor = spec.flavor
        specs = _read_optional(flavor, 'extra_specs') or {}
        flavor_specs = extra_specs.parse(specs)
        neutral = pinned = None
        if flavor_specs.policy == model.NONE:
            neutral = '%s=%s' % (POLICY_KEY, model.NONE)
        if _read_optional(spec, 'numa_topology') is not None:
            pinned = 'image properties'
        pinned = ', '.join(extra_specs.pinning_specs(specs)) or pinned
        guest = expected_guest(
            int(flavor.vcpus),
            int(flavor.memory_mb),
            flavor_specs.policy,
            INTENSITY[flavor_specs.memory_intensity],
        )
        if pinned:
            # Its memory may be huge pages, which are not counted in what is promised.
            guest = guest._replace(memory_mib=0, policy=model.SPREAD)
            if specs.get('hw:cpu_policy') == 'dedicated':  # of the shared CPUs it takes none
                guest = guest._replace(vcpus=0, demand_cores=0.0)
        # Nova names the host to leave in each of its moves, and none for a new server.
        is_move = bool(_read_optional(spec, 'ignore_hosts'))
        group = _read_optional(spec, 'instance_group')
        policy = group and _read_optional(group, 'policy')
        is_soft = str(policy).startswith('soft-')
        return GuestRequest(
            guest,
            _read_optional(spec, 'instance_uuid'),
            neutral,
            flavor_specs,
            pinned,
            is_move,
            is_soft,
        )
    except Exception as error:  # nothing in a request may end in an error of ours
        return GuestRequest(neutral='request not understood: %.200r' % error)


def _read_optional(versioned: object, name: str) -> Any:
    """Read a field of a versioned object that may be unset, where reading would raise."""
    is_set = getattr(versioned, 'obj_attr_is_set', None)
    if is_set is not None and not is_set(name):
        return None
    return getattr(versioned, name, None)
