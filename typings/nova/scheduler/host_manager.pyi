# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping

from nova.objects.monitor_metric import MonitorMetricList

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
