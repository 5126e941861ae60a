# SPDX-License-Identifier: Apache-2.0
from nova.objects.flavor import Flavor

class RequestSpec:
    flavor: Flavor
    instance_group: object
    instance_uuid: str | None
    numa_topology: object
