# SPDX-License-Identifier: Apache-2.0
class Migration:
    dest_compute: str | None
