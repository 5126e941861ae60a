# SPDX-License-Identifier: Apache-2.0
from typing import Any

class Flavor:
    vcpus: int
    memory_mb: int
    extra_specs: dict[str, str]
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
