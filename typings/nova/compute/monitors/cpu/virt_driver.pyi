# SPDX-License-Identifier: Apache-2.0
from nova.compute.monitors import base
from nova.compute.resource_tracker import ResourceTracker
from nova.objects.monitor_metric import MonitorMetricList

class Monitor(base.CPUMonitorBase):
    def __init__(self, resource_tracker: ResourceTracker) -> None: ...
    def populate_metrics(self, metric_list: MonitorMetricList) -> None: ...
