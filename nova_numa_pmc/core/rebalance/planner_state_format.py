# SPDX-License-Identifier: Apache-2.0
"""Convert the planner's state to plain data and back, to keep it while the agent restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.core.rebalance.planner_state import (
    Caution,
    PlannerState,
    Regret,
    Trial,
    TrialPart,
)
from nova_numa_pmc.exceptions import require_major

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: Version of the format, incremented when the meaning of a field changes. Readers ignore fields
#: that they do not know.
VERSION = 1


def to_data(state: PlannerState) -> dict[str, Any]:
    """Return the planner's state as dicts, lists, strings and numbers, as JSON has them."""
    return dict(
        regrets=[regret._asdict() for regret in state.regrets],
        trials=[trial._asdict() for trial in state.trials],
        cautions=[caution._asdict() for caution in state.cautions],
        version=VERSION,
        moved_s=list(state.moved_s),
        changed_s=list(state.changed_s),
        owed_bytes=state.owed_bytes,
    )


def from_data(data: Any) -> PlannerState:
    """Return the state that plain data describes.

    :param data: the result of :func:`to_data`, also that of a newer release with the same version
    :raises ValueError: the data is malformed or has another version. An empty state can safely be
        used instead: regrets then accumulate from zero
    """
    try:
        require_major(data['version'], VERSION)
        return PlannerState(
            tuple(
                Regret(tuple(_key(*part) for part in regret['key']), _number(regret['core_sec']))
                for regret in data['regrets']
            ),
            tuple(
                Trial(
                    tuple(_part(*part) for part in trial['parts']),
                    _number(trial['cost_core_sec']),
                    _number(trial['credit_core_sec']),
                    _number(trial['since_s']),
                )
                for trial in data['trials']
            ),
            tuple(
                Caution(
                    str(caution['uuid']), _number(caution['factor']), _number(caution['since_s'])
                )
                for caution in data['cautions']
            ),
            tuple(map(_number, data['moved_s'])),
            tuple(map(_number, data['changed_s'])),
            int(_number(data['owed_bytes'])),
        )
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError("not the planner's state: %r" % error) from None


def _key(
    uuid: object, cpu_nodes: Iterable[Any], mem_nodes: Iterable[Any]
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return str(uuid), _nodes(cpu_nodes), _nodes(mem_nodes)


def _part(
    uuid: object, from_nodes: Iterable[Any], mem_shares: Iterable[Any], to_nodes: Iterable[Any]
) -> TrialPart:
    return TrialPart(
        str(uuid),
        _nodes(from_nodes),
        tuple((int(node), _number(share)) for node, share in mem_shares),
        _nodes(to_nodes),
    )


def _nodes(ids: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(node) for node in ids)


def _number(value: Any) -> float:
    return json_values.number(value, minimum=-json_values.NUMBER_MAX)
