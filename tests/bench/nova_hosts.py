# SPDX-License-Identifier: Apache-2.0
"""Build Nova's HostStates and RequestSpecs for benchmarks, as the scheduler gets them."""

import datetime
import json
import random
import time
import uuid

from nova import objects
from nova.scheduler import host_manager

from nova_numa_pmc import model
from nova_numa_pmc.compute import metrics_encoder
from nova_numa_pmc.state import publication
from tests.fixtures.metrics import metric_list
from tests.fixtures.model_records import GIB

objects.register_all()

CELL = '00000000-0000-0000-0000-000000000001'


def published(rng, nodes=2, cores=40.0):
    """Return the publication of a host, with random loads."""
    views = tuple(
        model.NodeView(
            at,
            cores,
            int(cores * 1.6),
            256 * GIB,
            rng.randint(0, 256 * GIB),
            rng.randint(0, 20),
            rng.randint(0, 100),
            rng.uniform(0, 1.2 * cores),
            rng.uniform(0, 2e11),
            2e11,
            rng.random(),
        )
        for at in range(nodes)
    )
    distances = tuple(tuple(10 if a == b else 21 for b in range(nodes)) for a in range(nodes))
    return publication.Publication(
        time.time(), 60.0, model.HostView(views, distances), (rng.random(),) * nodes, 'perf'
    )


def uuids(at, count):
    """Return the uuids of a host's instances, as random as Nova's."""
    rng = random.Random(at)
    return [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(count)]


def topology_json(nodes=2, cpus=32):
    """Render the column compute_nodes.numa_topology."""
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=at,
                cpuset=set(range(at * cpus, (at + 1) * cpus)),
                pcpuset=set(),
                memory=256 << 10,
                cpu_usage=10,
                memory_usage=20 << 10,
                pinned_cpus=set(),
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=64 << 20, used=0)],
                siblings=[{at * cpus + cpu, at * cpus + cpu + 16} for cpu in range(cpus // 2)],
            )
            for at in range(nodes)
        ]
    )._to_json()


def compute_nodes(count, seed=1, instances=50):
    """Make database rows for this number of hosts and instances on each, just audited."""
    rng, topology, now_s = random.Random(seed), topology_json(), time.time()
    saved = datetime.datetime.fromtimestamp(now_s, datetime.timezone.utc)
    return [
        objects.ComputeNode(
            uuid=str(uuid.UUID(int=rng.getrandbits(128))),
            host=f'host{at}',
            hypervisor_hostname=f'host{at}',
            hypervisor_type='QEMU',
            hypervisor_version=8000000,
            host_ip='192.0.2.1',
            memory_mb=512 << 10,
            memory_mb_used=100 << 10,
            free_ram_mb=412 << 10,
            local_gb=1000,
            local_gb_used=10,
            free_disk_gb=990,
            disk_available_least=990,
            vcpus=64,
            vcpus_used=50,
            cpu_info='{}',
            supported_hv_specs=[],
            stats={'num_instances': str(instances), 'num_vm_building': '0'},
            pci_device_pools=None,
            updated_at=saved,
            cpu_allocation_ratio=4.0,
            ram_allocation_ratio=1.5,
            disk_allocation_ratio=1.0,
            numa_topology=topology,
            metrics=json.dumps(
                metric_list(published(rng), 50, 100 << 10, metrics_encoder.NovaCounts())
            ),
        )
        for at in range(count)
    ]


def host_states(nodes, instances=50):
    """Make new HostStates, as for each request, with this number of instances each."""
    states, instance = [], objects.Instance()
    for at, compute in enumerate(nodes):
        state = host_manager.HostState(compute.host, compute.hypervisor_hostname, CELL)
        state.update(
            compute=compute,
            aggregates=[],
            service={},
            inst_dict=dict.fromkeys(uuids(at, instances), instance),
        )
        states.append(state)
    return states


def request_spec(vcpus=4, memory_mb=8192, **extra_specs):
    """Make the request for one server of a plain flavor."""
    return objects.RequestSpec(
        instance_uuid=str(uuid.UUID(int=7)),
        num_instances=1,
        numa_topology=None,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        ignore_hosts=None,
        force_hosts=None,
        force_nodes=None,
        requested_destination=None,
        retry=None,
        limits=objects.SchedulerLimits(),
        instance_group=None,
        scheduler_hints={},
        project_id='p',
        user_id='u',
        availability_zone=None,
        security_groups=objects.SecurityGroupList(),
        image=objects.ImageMeta(id=str(uuid.UUID(int=8)), properties=objects.ImageMetaProps()),
        flavor=objects.Flavor(
            id=1,
            name='f',
            flavorid='f',
            vcpus=vcpus,
            memory_mb=memory_mb,
            root_gb=10,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            vcpu_weight=0,
            disabled=False,
            is_public=True,
            projects=[],
            extra_specs=extra_specs,
        ),
    )
