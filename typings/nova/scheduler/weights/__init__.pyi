# SPDX-License-Identifier: Apache-2.0
import abc
from collections.abc import Sequence

from nova import weights
from nova.objects.request_spec import RequestSpec
from nova.scheduler.host_manager import HostState

class BaseHostWeigher(weights.BaseWeigher, metaclass=abc.ABCMeta): ...

class HostWeightHandler:
    def __init__(self) -> None: ...
    def get_matching_classes(
        self, loadable_class_names: Sequence[str]
    ) -> list[type[BaseHostWeigher]]: ...
    def get_weighed_objects(
        self,
        weighers: Sequence[weights.BaseWeigher],
        obj_list: Sequence[HostState],
        weighing_properties: RequestSpec,
    ) -> list[weights.WeighedObject]: ...
