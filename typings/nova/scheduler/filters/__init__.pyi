# SPDX-License-Identifier: Apache-2.0
from nova import filters
from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState

class BaseHostFilter(filters.BaseFilter):
    RUN_ON_REBUILD: bool
    def host_passes(self, host_state: HostState, filter_properties: RequestSpec) -> bool: ...
