# SPDX-License-Identifier: Apache-2.0
# Nova puts its classes here when a service begins (register_all()).
from nova.objects.compute_node import ComputeNode as ComputeNode
from nova.objects.monitor_metric import (
    MonitorMetric as MonitorMetric,
    MonitorMetricList as MonitorMetricList,
)
from nova.objects.numa import NUMATopology as NUMATopology
from nova.objects.request_spec import RequestSpec as RequestSpec
