# SPDX-License-Identifier: Apache-2.0
from nova.objects.compute_node import ComputeNode

class ResourceTracker:
    def __init__(self, host: str, driver: object, reportclient: object = ...) -> None: ...
    compute_nodes: dict[str, ComputeNode]
