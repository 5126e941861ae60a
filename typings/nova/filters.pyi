# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState

class BaseFilter:
    def filter_all(
        self, filter_obj_list: Iterable[HostState], spec_obj: RequestSpec
    ) -> Iterable[HostState]: ...
