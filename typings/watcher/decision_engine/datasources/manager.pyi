# SPDX-License-Identifier: Apache-2.0
from typing import Any

class DataSourceManager:
    def __init__(self, config: Any = None, osc: Any = None) -> None: ...
