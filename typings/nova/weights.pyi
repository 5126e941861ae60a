# SPDX-License-Identifier: Apache-2.0
import abc
from collections.abc import Iterable, Sequence

from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState

class WeighedObject:
    obj: HostState
    weight: float
    def __init__(self, obj: HostState, weight: float) -> None: ...

class BaseWeigher(metaclass=abc.ABCMeta):
    minval: float | None
    maxval: float | None
    def weight_multiplier(self, host_state: HostState) -> float: ...
    @abc.abstractmethod
    def _weigh_object(self, obj: HostState, weight_properties: RequestSpec) -> float: ...
    def weigh_objects(
        self, weighed_obj_list: Sequence[WeighedObject], weight_properties: RequestSpec
    ) -> list[float]: ...

def normalize(
    weight_list: Sequence[float], minval: float | None = None, maxval: float | None = None
) -> Iterable[float]: ...
