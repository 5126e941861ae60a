# SPDX-License-Identifier: Apache-2.0
"""Choose hosts as nova-scheduler would: with its hosts, its filters and its weighers.

This is for a command on a controller, whose process adopts Nova's configuration. Nova's databases
are read, and nothing is written.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import nova.conf
from nova import config, context, objects as nova_objects
from nova.scheduler import host_manager
from nova.virt import hardware

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler.weigher import NUMAPressureWeigher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nova.scheduler.host_manager import HostState

CONF = nova.conf.CONF
#: Nova's objects, whose classes register_all() adds at run time.
objects: Any = nova_objects


class Choice(Record):
    """Nova's choice of a host for one guest.

    :param host: the name of its compute node; None: no host has room and passes the filters
    :param weights: {compute node: {weigher: what it adds to the weight}} of the hosts that pass
    """

    host: str | None
    weights: Mapping[str, Mapping[str, float]]


def configure(files: Sequence[str]) -> None:
    """Read Nova's configuration files, as nova-scheduler does.

    :param files: a later file overrides earlier ones
    :raises oslo_config.cfg.Error: an option cannot be used
    """
    config.parse_args(['nova-scheduler'], default_config_files=list(files), init_rpc=False)
    objects.register_all()


def choices(
    vcpus: int, memory_mb: int, extra_specs: Mapping[str, str], count: int, with_ours: bool
) -> Iterator[Choice]:
    """Yield the hosts of guests that are requested one after another.

    :param with_ours: whether our weigher counts, in mode ``on``, even if nova.conf does not name
        it
    """
    CONF.set_override('track_instance_changes', False, group='filter_scheduler')
    CONF.set_override('mode', scheduler_conf.ON, group=scheduler_conf.GROUP.name)
    manager: Any = host_manager.HostManager()
    weighers = [one for one in manager.weighers if not isinstance(one, NUMAPressureWeigher)]
    if with_ours:
        weighers.append(NUMAPressureWeigher())
    states = manager.get_host_states_by_uuids(context.get_admin_context(), None, None)
    hosts = sorted(states, key=lambda host: str(host.nodename))
    for number in range(1, count + 1):
        # Our weigher's random part depends on the uuid: the same in each run of the command.
        spec = _spec(vcpus, memory_mb, extra_specs, str(uuid.UUID(int=number)))
        with_room = [host for host in hosts if _has_room(host, vcpus, memory_mb)]
        passing = list(manager.get_filtered_hosts(with_room, spec))
        weights: dict[str, dict[str, float]] = {host.nodename: {} for host in passing}
        for weigher in weighers:
            for weighed in manager.weight_handler.get_weighed_objects([weigher], passing, spec):
                weights[weighed.obj.nodename][type(weigher).__name__] = weighed.weight
        chosen = max(passing, key=lambda host: sum(weights[host.nodename].values()), default=None)
        if chosen is not None:
            chosen.consume_from_request(spec)
        yield Choice(chosen and chosen.nodename, weights)


def _has_room(host: HostState, vcpus: int, memory_mb: int) -> bool:
    """Return whether Placement, which is not asked, would allow the guest by vCPUs and memory."""
    memory_max_mb = host.total_usable_ram_mb * (host.ram_allocation_ratio or 1.0)
    return (
        host.vcpus_used + vcpus <= host.vcpus_total * (host.cpu_allocation_ratio or 1.0)
        and host.total_usable_ram_mb - host.free_ram_mb + memory_mb <= memory_max_mb
    )


def _spec(
    vcpus: int, memory_mb: int, extra_specs: Mapping[str, str], instance_uuid: str
) -> nova_objects.RequestSpec:
    """Return the request for a server without disks, server group, image properties or devices."""
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    flavor = objects.Flavor(
        vcpus=vcpus,
        memory_mb=memory_mb,
        root_gb=0,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(extra_specs),
    )
    spec: nova_objects.RequestSpec = objects.RequestSpec(
        instance_uuid=instance_uuid,
        num_instances=1,
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=objects.InstancePCIRequests(requests=[]),
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        requested_destination=None,
        requested_resources=[],
        instance_group=None,
        scheduler_hints={},
        limits=objects.SchedulerLimits(),
        image=image,
        flavor=flavor,
    )
    return spec
