# SPDX-License-Identifier: Apache-2.0
class NUMACell:
    pinned_cpus: set[int]

class NUMATopology:
    cells: list[NUMACell]
    @classmethod
    def obj_from_db_obj(cls, db_obj: str) -> NUMATopology: ...
