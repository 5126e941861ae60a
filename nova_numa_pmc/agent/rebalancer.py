# SPDX-License-Identifier: Apache-2.0
"""Plan in each tick which guests to move, and log the moves or enqueue them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core.demand import DAY_S
from nova_numa_pmc.core.rebalance import plan_records, planner
from nova_numa_pmc.core.rebalance.plan_records import explain_move, explain_remark
from nova_numa_pmc.core.rebalance.planner_state import PlannerState, refunded
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import files
from nova_numa_pmc.moves import situations
from nova_numa_pmc.record import Record
from nova_numa_pmc.state import pause, state_files

if TYPE_CHECKING:
    import logging

    from nova_numa_pmc.agent.agent import Tick
    from nova_numa_pmc.agent.sampling import Sampler
    from nova_numa_pmc.core.demand import Histories
    from nova_numa_pmc.moves.executor import MoveExecutor
    from nova_numa_pmc.problem_log import ProblemLog

#: File in the state directory with the planner's state, which outlasts a restart of the agent.
FILE = 'rebalance-memory'
_MAJOR = 4
_SIZE_MAX_BYTES = 4 << 20


class _Saved(Record):
    """Content of that file.

    :param boot_id: boot id of the kernel, to whose clock the times belong
    """

    boot_id: str
    memory: PlannerState


class Rebalancer:
    """Plans moves from a tick, logs or enqueues them, and keeps the state of the planner."""

    def __init__(
        self,
        options: opts.AgentOptions,
        move_executor: MoveExecutor,
        root: str,
        log: logging.Logger,
        problem_log: ProblemLog,
    ) -> None:
        self.options = options
        self._executor = move_executor
        self._root = root
        self._log = log
        self._problem_log = problem_log
        self._planner_state: PlannerState | None = None
        #: {uuid: where a dry run has the guest}.
        self._assumed: dict[str, plan_records.Move] = {}
        #: Whether no memory is moved because the last moves did not pay.
        self.moves_stopped = False

    def plan_and_enqueue(self, tick: Tick, sampler: Sampler, histories: Histories | None) -> None:
        """Make a plan, and enqueue or log its moves.

        Nothing is planned while moves are in progress, nor if guests were moved in the interval of
        the sample, because it would measure the moves, and the guests at their former places.

        :param tick: a tick with a sample, the host and its promises
        :param sampler: the sampler that took the sample
        :param histories: of the guests' demand; None: unknown
        """
        assert tick.sample is not None and tick.host_promises is not None
        self.moves_stopped = pause.read(self._root) is not None  # of memory only, or it is paused
        if self._planner_state is None:
            self._planner_state = self._load()
        self._planner_state = refunded(self._planner_state, self._executor.not_begun)
        self._executor.not_begun.clear()
        if self._executor.busy or tick.guests_moved or not tick.sample.elapsed_s:
            return
        assert tick.host is not None  # it was measured
        situation = situations.situation(
            tick.sample,
            tick.host,
            tick.host_promises,
            tick.guests,
            sampler,
            self.options.host_options.placement_options,
            self._root,
            measured_since_ns=tick.now.boottime_ns - int(tick.sample.elapsed_s * 1e9),
            histories=histories.guests if histories else {},
        )
        plan, state = planner.plan(
            situation,
            self._planner_state,
            self.options.rebalance_options._replace(may_move=not self.moves_stopped),
            tick.sample.elapsed_s,
            tick.now.boottime_ns / 1e9,
            self._assumed.values(),
        )
        if not plan.moves:  # otherwise, the state assumes that the moves are made
            self._planner_state = state
        if self.options.rebalance == opts.DRY_RUN:
            self._planner_state = state  # it plans on as if its moves had been made
            for move in plan.moves:
                self._log.info('dry run: %s', explain_move(move))
                self._assumed[move.uuid] = move
            return
        self._save(state)
        self._planner_state = state  # a move that cannot be saved is neither made nor counted
        self._problem_log.log_problems(
            'rebalance: ' + explain_remark(remark)
            for remark in plan.remarks
            if remark.code in (plan_records.BUDGET, plan_records.DO_NOT_PAY)
        )
        for remark in plan.remarks:
            if remark.code == plan_records.DO_NOT_PAY and not self.moves_stopped:
                pause.begin(self._root, explain_remark(remark), DAY_S, only_memory=True)
        self._executor.enqueue(plan, tick.host_promises.promises)

    def _load(self) -> PlannerState:
        try:
            data = state_files.read(self._directory, FILE, _SIZE_MAX_BYTES)
            saved = json_values.decode(_Saved, data, _MAJOR) if data else None
            if saved is None or saved.boot_id != files.read_boot_id(self._root):
                return PlannerState()  # the times in the file are those of another boot
            return saved.memory
        except (ValueError, StateError) as error:
            self._log.warning(
                '%s: %s: the regret of moves starts from zero again',
                os.path.join(self._directory, FILE),
                error,
            )
            return PlannerState()

    def _save(self, state: PlannerState) -> None:
        saved = _Saved(files.read_boot_id(self._root), state)
        state_files.write(self._directory, FILE, json_values.encode(saved, _MAJOR))

    @property
    def _directory(self) -> str:
        return self.options.host_options.state_path(self._root)
