# SPDX-License-Identifier: Apache-2.0
class ComputeNode:
    vcpus_used: int
    memory_mb_used: int
    stats: dict[str, str] | None
    def obj_attr_is_set(self, attrname: str) -> bool: ...
