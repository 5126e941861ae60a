# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from datetime import datetime

from nova.objects.compute_node import ComputeNode
from nova.objects.monitor_metric import MonitorMetricList
from nova.objects.numa import NUMATopology
from nova.objects.request_spec import RequestSpec

class HostState:
    def __init__(self, host: str, node: str, cell_uuid: str | None) -> None: ...
    host: str
    nodename: str
    metrics: MonitorMetricList | None
    instances: Mapping[str, object]
    aggregates: list[object]
    vcpus_total: int
    vcpus_used: int
    total_usable_ram_mb: int
    free_ram_mb: int
    cpu_allocation_ratio: float | None
    ram_allocation_ratio: float | None
    updated: datetime | None
    num_instances: int
    stats: dict[str, str]
    numa_topology: NUMATopology | None
    def update(
        self,
        compute: ComputeNode | None = ...,
        service: dict[str, object] | None = ...,
        aggregates: list[object] | None = ...,
        inst_dict: dict[str, object] | None = ...,
    ) -> None: ...
    def consume_from_request(self, spec_obj: RequestSpec) -> None: ...

class HostManager: ...
