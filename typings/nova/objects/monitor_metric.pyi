# SPDX-License-Identifier: Apache-2.0
import abc
import datetime
from typing import Any

class MonitorMetric:
    name: str
    value: int
    numa_membw_values: dict[str, int] | None
    timestamp: datetime.datetime
    source: str
    def __init__(
        self,
        context: object = ...,
        *,
        name: str = ...,
        value: int = ...,
        numa_membw_values: dict[str, int] | None = ...,
        timestamp: datetime.datetime = ...,
        source: str = ...,
    ) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...

class MonitorMetricList(metaclass=abc.ABCMeta):
    objects: list[MonitorMetric]
