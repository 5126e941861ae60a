# SPDX-License-Identifier: Apache-2.0
import abc
from collections.abc import Sequence
from typing import Any

from watcher.decision_engine.goal.efficacy.indicators import IndicatorSpecification
from watcher.decision_engine.solution.efficacy import Indicator

class EfficacySpecification(metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def get_indicators_specifications(self) -> Sequence[IndicatorSpecification]: ...
    @abc.abstractmethod
    def get_global_efficacy_indicator(self, indicators_map: Any) -> list[Indicator]: ...
