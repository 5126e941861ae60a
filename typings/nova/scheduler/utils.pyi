# SPDX-License-Identifier: Apache-2.0
from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState

def request_is_rebuild(spec_obj: RequestSpec) -> bool: ...
def get_weight_multiplier(
    host_state: HostState, multiplier_name: str, multiplier_config: float
) -> float: ...
