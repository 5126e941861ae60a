# SPDX-License-Identifier: Apache-2.0
class Migration:
    dest_compute: str | None
    status: str | None
    @property
    def is_live_migration(self) -> bool: ...
