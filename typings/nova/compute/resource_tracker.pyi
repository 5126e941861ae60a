# SPDX-License-Identifier: Apache-2.0
from nova.compute.stats import Stats
from nova.objects.compute_node import ComputeNode
from nova.objects.migration import Migration

class ResourceTracker:
    def __init__(self, host: str, driver: object, reportclient: object = ...) -> None: ...
    host: str
    compute_nodes: dict[str, ComputeNode]
    stats: dict[str, Stats]
    tracked_instances: set[str]
    tracked_migrations: dict[str, Migration]
