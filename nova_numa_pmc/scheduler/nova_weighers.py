# SPDX-License-Identifier: Apache-2.0
"""Weigh saved hosts with the weighers that nova.conf names, using Nova's own code.

This is for commands on a machine with Nova; their process adopts Nova's configuration. Columns
that are missing from a row of compute_nodes are 0, as in a HostState that Nova has not filled yet.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import nova.conf
from nova import objects as nova_objects
from nova.scheduler import host_manager, weights
from oslo_config import cfg

from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.record import Record
from nova_numa_pmc.scheduler import saved_hosts
from nova_numa_pmc.scheduler.weigher import NUMAPressureWeigher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nova_numa_pmc.scheduler.saved_hosts import SavedFlavor

CONF = nova.conf.CONF
#: Nova's objects, whose classes register_all() adds at run time.
objects: Any = nova_objects

#: Nova requires a uuid; this one belongs to no instance and no host.
_NO_UUID = '00000000-0000-0000-0000-000000000000'
#: Columns that are copied. Others are derived from these, or keep their defaults.
_INTS = 'vcpus', 'vcpus_used', 'memory_mb', 'memory_mb_used', 'local_gb', 'local_gb_used'


class NovaWeights(Record):
    """The weights that Nova's weighers give to the hosts of a request.

    :param added_weights: {weigher: what it adds to the weight of each host}, in the order of
        nova.conf
    :param failed: {weigher: why it failed}
    """

    added_weights: dict[str, list[float]]
    failed: dict[str, str]

    def weight(self, position: int) -> float:
        """Return the weight of the host at a position."""
        return sum(
            weights_by_position[position] for weights_by_position in self.added_weights.values()
        )


def weigh(
    rows: Sequence[Mapping[str, Any]], flavor: SavedFlavor, files: Sequence[str], realtime_s: float
) -> NovaWeights:
    """Weigh hosts with each configured weigher.

    Our jitter is left out, because the instance's uuid is not known.

    :param rows: at least two rows of compute_nodes, because Nova does not weigh a single host
    :param files: nova.conf and others; a later file overrides earlier ones
    :param realtime_s: the time of the decision [s since the epoch]
    :raises cfg.Error: an option cannot be used
    :raises ImportError: a class that an option names is not installed
    :raises Exception: of any kind, if a row is not one of Nova's
    """
    _configure(files)
    handler = weights.HostWeightHandler()
    classes = handler.get_matching_classes(CONF.filter_scheduler.weight_classes)
    spec, hosts = _spec(flavor), [_host_state(row) for row in rows]
    added_weights: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for weigher_class in classes:
        try:
            weigher = weigher_class()
            if isinstance(weigher, NUMAPressureWeigher):
                weigher.clock = lambda: realtime_s
            by_host = {
                weighed.obj.nodename: weighed.weight
                for weighed in handler.get_weighed_objects([weigher], hosts, spec)
            }
            added_weights[weigher_class.__name__] = [by_host[host.nodename] for host in hosts]
        except cfg.Error:
            raise
        except Exception as error:  # any weigher may need something that rows lack
            failed[weigher_class.__name__] = ('%s: %s' % (type(error).__name__, error))[:200]
    return NovaWeights(added_weights, failed)


def _configure(files: Sequence[str]) -> None:
    # As in host/nova_conf.py, other sources that a file names are not fetched.
    CONF._load_alternative_sources = lambda: None  # type: ignore[method-assign]
    CONF(
        [], project='nova', default_config_files=list(files), default_config_dirs=[], use_env=False
    )
    scheduler_conf.register_opts(CONF)
    CONF.set_override('penalty_jitter', 0.0, group=scheduler_conf.GROUP.name)
    objects.register_all()


def _spec(flavor: SavedFlavor) -> nova_objects.RequestSpec:
    """Return the request for a server without server group, image properties or devices."""
    spec: nova_objects.RequestSpec = objects.RequestSpec(
        instance_uuid=_NO_UUID,
        num_instances=1,
        numa_topology=None,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        requested_destination=None,
        instance_group=None,
        scheduler_hints={},
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        flavor=objects.Flavor(
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            extra_specs=dict(flavor.extra_specs),
        ),
    )
    return spec


def _host_state(row: Mapping[str, Any]) -> host_manager.HostState:
    """Return the HostState that the scheduler would create from a row."""
    name = row.get('host') or row['hypervisor_hostname']
    amounts = {key: int(row.get(key) or 0) for key in _INTS}
    reported = row.get('metrics') or '[]'
    free_disk_gb = row.get('free_disk_gb')
    if free_disk_gb is None:
        free_disk_gb = amounts['local_gb'] - amounts['local_gb_used']
    compute = objects.ComputeNode(
        host=name,
        hypervisor_hostname=row.get('hypervisor_hostname') or name,
        uuid=_NO_UUID,
        host_ip=None,
        hypervisor_type=row.get('hypervisor_type') or '',
        hypervisor_version=int(row.get('hypervisor_version') or 0),
        cpu_info='{}',
        supported_hv_specs=[],
        pci_device_pools=None,
        numa_topology=None,
        updated_at=None,
        free_ram_mb=amounts['memory_mb'] - amounts['memory_mb_used'],
        free_disk_gb=int(free_disk_gb),
        disk_available_least=row.get('disk_available_least'),
        stats={key: str(value) for key, value in saved_hosts.stats_of(row).items()},
        metrics=reported if type(reported) is str else json.dumps(reported),
        **{
            '%s_allocation_ratio' % kind: float(saved_hosts.allocation_ratio(row, kind))
            for kind in saved_hosts.INITIAL_RATIOS
        },
        **amounts,
    )
    state = host_manager.HostState(
        compute.host, compute.hypervisor_hostname, row.get('cell') or None
    )
    aggregates = [
        objects.Aggregate(metadata={str(key): str(value) for key, value in metadata.items()})
        for metadata in row.get('aggregates') or []
    ]
    state.update(compute=compute, service={}, aggregates=aggregates, inst_dict={})
    return state
