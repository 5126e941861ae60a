# SPDX-License-Identifier: Apache-2.0
"""Let Nova's API refuse a flavor whose ``numa_pmc:*`` extra specs are wrong.

Nova loads this module through the entry point group ``nova.api.extra_spec_validators``
(nova/api/validation/extra_specs/validators.py), and then also refuses every other name in the
namespace. :mod:`nova_numa_pmc.core.extra_specs` interprets the specs, including those of flavors
that were created before this module was installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import extra_specs
from nova_numa_pmc.core.host_view import INTENSITY, INTENSITY_KEY

if TYPE_CHECKING:
    from nova.api.validation.extra_specs import base

#: A number above 0 and at most :data:`extra_specs.MAX_PRESSURE_MAX`, in plain digits.
PRESSURE_PATTERN = (
    r'(?!0+(\.0+)?$)([0-9]|[1-5][0-9]|6[0-3])(\.[0-9]{1,6})?'
    r'|64(\.0{1,6})?'
)

#: Name, description and value of each extra spec, as Nova's ExtraSpecValidator takes them.
SPECS = (
    (
        model.POLICY_KEY,
        'How the guest is placed on NUMA nodes of its host if Nova does not pin it. ``auto``: '
        'on one node if it fits, else on the smallest and closest set of nodes; ``one_node``: on '
        'one node, and only on hosts where it fits on one; ``spread``: over all nodes, for '
        'bandwidth; ``none``: not at all.',
        {'type': str, 'description': 'A placement policy', 'enum': list(model.POLICIES)},
    ),
    (
        extra_specs.MAX_PRESSURE_KEY,
        'The highest pressure that the guest may leave on the nodes that it would use; hosts '
        'where it would leave more are filtered out, except for a guest that leaves its host. '
        '``1`` is saturated.',
        {'type': str, 'description': 'A number above 0, at most 64', 'pattern': PRESSURE_PATTERN},
    ),
    (
        INTENSITY_KEY,
        'How much memory bandwidth the guest is expected to use until it is measured, relative to '
        'the mean of its host: ``low`` 0.3, ``medium`` 1, ``high`` 3 times.',
        {'type': str, 'description': 'An expected intensity', 'enum': list(INTENSITY)},
    ),
)


def register() -> list[base.ExtraSpecValidator]:
    """Return the validators, for Nova's API."""
    from nova.api.validation.extra_specs import base  # only Nova's API has it

    return [
        base.ExtraSpecValidator(name=name, description=description, value=value)
        for name, description, value in SPECS
    ]
