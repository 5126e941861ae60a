# SPDX-License-Identifier: Apache-2.0
"""Read Nova's RequestSpec.

This module imports nothing from Nova. The request that it takes has the attributes of Nova's,
whether it comes from Nova or from a file.
"""

from __future__ import annotations

from typing import Any, Protocol

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, extra_specs
from nova_numa_pmc.core.host_view import INTENSITY
from nova_numa_pmc.record import Record


class FlavorLike(Protocol):
    """The fields of a flavor that are read, besides ``extra_specs`` if it is set."""

    @property
    def vcpus(self) -> int:
        """Return the number of vCPUs."""

    @property
    def memory_mb(self) -> int:
        """Return the memory [MiB]."""


class RequestSpecLike(Protocol):
    """The fields of a RequestSpec that are read, besides the optional ones."""

    @property
    def flavor(self) -> FlavorLike:
        """Return the guest's flavor."""


class Guest(Record):
    """A guest that is to be scheduled.

    :param vcpus, memory_mib: its size by its flavor; if Nova pins it, the vCPUs that share CPUs
    :param policy: one of :data:`model.POLICIES`
    :param intensity: its traffic per core relative to the host's mean
    """

    vcpus: float
    memory_mib: int
    policy: str = model.AUTO
    intensity: float = 1.0


class GuestRequest(Record):
    """A request for one guest, as far as it matters here.

    :param guest: the requested guest; None if the request was not understood
    :param instance_uuid: the guest's uuid, by which a guest that is resized is found on its host
    :param why_not_weighed: why hosts are not compared for the guest; None if they are
    :param why_pinned: the extra specs or properties because of which Nova itself pins the guest;
        None if it does not. The nodes that Nova will choose are unknown here, so the guest is
        assumed to use all of them, and refusing hosts is left to NUMATopologyFilter
    :param is_move: whether the guest has to leave a host and find another one, as in an evacuation
        or for the maintenance of its host, or in a resize unless Nova's
        ``allow_resize_to_same_host`` is true
    """

    guest: Guest | None = None
    instance_uuid: str | None = None
    why_not_weighed: str | None = None
    flavor_specs: extra_specs.FlavorSpecs = extra_specs.FlavorSpecs()
    why_pinned: str | None = None
    is_move: bool = False


def read(spec: RequestSpecLike) -> GuestRequest:
    """Read a RequestSpec; its result says why if it cannot be understood."""
    try:
        flavor = spec.flavor
        specs = _read_optional(flavor, 'extra_specs') or {}
        flavor_specs = extra_specs.parse(specs)
        why_pinned = None
        topology = _read_optional(spec, 'numa_topology')
        if topology is not None:
            why_pinned = 'image properties'
        pinning_specs = extra_specs.pinning_specs(specs)
        why_pinned = ', '.join('%s=%s' % item for item in pinning_specs.items()) or why_pinned
        vcpus, memory_mb = int(flavor.vcpus), int(flavor.memory_mb)
        why_alone = eligibility.why_not(
            eligibility.PLACE,
            model.Guest(
                '',
                '',
                vcpus,
                memory_mb << 20,
                extra_specs=((model.POLICY_KEY, flavor_specs.policy),),
                placed_by=tuple(pinning_specs),
            ),
        )
        # For a guest that Nova pins, hosts are compared by what it would load.
        is_weighed = why_alone in ('', eligibility.PLACED_BY_OTHERS)
        why_not_weighed = None if is_weighed else eligibility.TEXTS[why_alone]
        guest = Guest(
            vcpus, memory_mb, flavor_specs.policy, INTENSITY[flavor_specs.memory_intensity]
        )
        if why_pinned:
            # Its memory may be huge pages, which promised memory does not include.
            shared_vcpus = extra_specs.shared_vcpus(guest.vcpus, specs, topology)
            guest = Guest(shared_vcpus, 0, model.SPREAD, guest.intensity)
        # For each of its moves, Nova names the host to leave; for a new server, it names none.
        is_move = bool(_read_optional(spec, 'ignore_hosts'))
        return GuestRequest(
            guest,
            _read_optional(spec, 'instance_uuid'),
            why_not_weighed,
            flavor_specs,
            why_pinned,
            is_move,
        )
    except Exception as error:  # no request may make the scheduler fail
        return GuestRequest(why_not_weighed='request not understood: %.200r' % error)


def _read_optional(versioned_object: object, name: str) -> Any:
    """Return a field of a versioned object; None if it is unset, when reading it would raise."""
    is_set = getattr(versioned_object, 'obj_attr_is_set', None)
    if is_set is not None and not is_set(name):
        return None
    return getattr(versioned_object, name, None)
