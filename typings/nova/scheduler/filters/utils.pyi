# SPDX-License-Identifier: Apache-2.0
from nova.scheduler.host_manager import HostState

def aggregate_values_from_key(host_state: HostState, key_name: str) -> set[str]: ...
