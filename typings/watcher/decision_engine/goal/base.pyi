# SPDX-License-Identifier: Apache-2.0
import abc
from typing import Any

from watcher.decision_engine.goal.efficacy.base import EfficacySpecification

class Goal(metaclass=abc.ABCMeta):
    def __init__(self, config: Any) -> None: ...
    @classmethod
    @abc.abstractmethod
    def get_name(cls) -> str: ...
    @classmethod
    @abc.abstractmethod
    def get_display_name(cls) -> str: ...
    @classmethod
    @abc.abstractmethod
    def get_translatable_display_name(cls) -> str: ...
    @abc.abstractmethod
    def get_efficacy_specification(cls) -> EfficacySpecification: ...
