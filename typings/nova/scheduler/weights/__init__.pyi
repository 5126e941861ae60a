# SPDX-License-Identifier: Apache-2.0
import abc

from nova import weights

class BaseHostWeigher(weights.BaseWeigher, metaclass=abc.ABCMeta): ...
