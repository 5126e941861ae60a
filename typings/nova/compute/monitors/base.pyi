# SPDX-License-Identifier: Apache-2.0
import abc

from nova.compute.resource_tracker import ResourceTracker
from nova.objects.monitor_metric import MonitorMetricList

class MonitorBase(metaclass=abc.ABCMeta):
    # What Nova hands over is its resource tracker.
    compute_manager: ResourceTracker
    source: str | None
    def __init__(self, compute_manager: ResourceTracker) -> None: ...
    @abc.abstractmethod
    def get_metric_names(self) -> set[str]: ...
    @abc.abstractmethod
    def populate_metrics(self, metric_list: MonitorMetricList) -> None: ...

class CPUMonitorBase(MonitorBase, metaclass=abc.ABCMeta):
    def get_metric_names(self) -> set[str]: ...
