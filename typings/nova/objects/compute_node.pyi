# SPDX-License-Identifier: Apache-2.0
class ComputeNode:
    hypervisor_hostname: str
    vcpus_used: int
    memory_mb_used: int
    stats: dict[str, str] | None
    numa_topology: str | None
    def obj_attr_is_set(self, attrname: str) -> bool: ...
