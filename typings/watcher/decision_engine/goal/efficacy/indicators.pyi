# SPDX-License-Identifier: Apache-2.0
import abc
from typing import Any

class IndicatorSpecification(metaclass=abc.ABCMeta):
    def __init__(
        self,
        name: str | None = None,
        description: str | None = None,
        unit: str | None = None,
        required: bool = True,
    ) -> None: ...
    @property
    @abc.abstractmethod
    def schema(self) -> dict[str, Any]: ...
