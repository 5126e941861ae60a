# SPDX-License-Identifier: Apache-2.0
class ComputeNode:
    vcpus_used: int
    memory_mb_used: int
