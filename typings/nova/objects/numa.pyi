# SPDX-License-Identifier: Apache-2.0
class NUMAPagesTopology:
    size_kb: int
    total: int
    used: int

class NUMACell:
    pinned_cpus: set[int]
    mempages: list[NUMAPagesTopology]

class NUMATopology:
    cells: list[NUMACell]
    @classmethod
    def obj_from_db_obj(cls, db_obj: str) -> NUMATopology: ...
