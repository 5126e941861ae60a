# SPDX-License-Identifier: Apache-2.0
"""Find out by how much hosts fall short of what other weighers of Nova promise.

Some of Nova's weighers keep promises to users and operators: members of a server group come
together or apart, devices stay free for guests that need them, hosts of a certain image or of a
new hypervisor come first. Each promise counts 1 at most by default, which any penalty would
outweigh, and so would its random part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import nova.conf
from nova import weights as base_weights
from nova.scheduler import weights as nova_weights
from oslo_log import log as logging

from nova_numa_pmc.problem_log import log_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nova.objects.request_spec import RequestSpec
    from nova.weights import WeighedObject

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: What a promise is worth that counts 1 in Nova: it is broken where more than this share of the
#: CPU time that the new guest wants would be lost by keeping it. On nodes of ten cores, a guest
#: loses a quarter at a pressure of about 0.75, and half of it at 1. ``make bench-promises`` shows
#: how often promises are broken.
PROMISE_LOSS = 0.25
_GROUP_WEIGHERS = 'ServerGroupSoftAffinityWeigher', 'ServerGroupSoftAntiAffinityWeigher'
_IMAGE_WEIGHER = 'ImagePropertiesWeigher'
_NAMES = (*_GROUP_WEIGHERS, _IMAGE_WEIGHER, 'PCIWeigher', 'HypervisorVersionWeigher')


def load_weighers() -> list[nova_weights.BaseHostWeigher]:
    """Return those of the configured weighers that keep promises."""
    classes = nova_weights.HostWeightHandler().get_matching_classes(
        CONF.filter_scheduler.weight_classes
    )
    return [weigher_class() for weigher_class in classes if weigher_class.__name__ in _NAMES]


def shortfalls(
    weighers: Sequence[nova_weights.BaseHostWeigher],
    weighed: Sequence[WeighedObject],
    spec: RequestSpec,
) -> list[float]:
    """Return by how much the weight of each host, by these weighers, is below the best host's.

    As in Nova, a weigher counts from 0 for the worst host of the request to its multiplier for the
    best one.

    :param weighers: as from :func:`load_weighers`
    """
    sums = none = [0.0] * len(weighed)
    for weigher in weighers:
        try:
            if not _may_differ(weigher, spec):
                continue
            # As its weigh_objects() does, which takes four times as long.
            raw = [weigher._weigh_object(host.obj, spec) for host in weighed]
            if not min(raw) < max(raw):
                continue
            normalized = base_weights.normalize(raw, weigher.minval, weigher.maxval)
            added = [
                weigher.weight_multiplier(host.obj) * weight
                for host, weight in zip(weighed, normalized)
            ]
        except Exception as error:  # Nova has called it itself, and decides what follows
            log_once(LOG.warning, '%s is left out: %s', type(weigher).__name__, repr(error))
            continue
        if all(map(math.isfinite, added)):
            sums = [total + weight for total, weight in zip(sums, added)]
    if sums is none:
        return none
    most = max(sums)
    return [most - total for total in sums]


def _may_differ(weigher: nova_weights.BaseHostWeigher, spec: RequestSpec) -> bool:
    """Return whether a weigher may tell hosts apart, if that is known without asking it."""
    name = type(weigher).__name__
    if name in _GROUP_WEIGHERS:
        return spec.instance_group is not None
    return name != _IMAGE_WEIGHER or CONF.filter_scheduler.image_props_weight_multiplier != 0.0
