# SPDX-License-Identifier: Apache-2.0
"""The goal and the strategy of Watcher that make the plan of a fleet its live migrations.

Watcher's decision engine loads them by their entry points; nothing else imports this module.
"""

from __future__ import annotations

import datetime
import functools
import time
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from oslo_log import log as logging
from watcher import objects
from watcher.decision_engine.datasources import manager
from watcher.decision_engine.goal import base as goal_base
from watcher.decision_engine.goal.efficacy import base as efficacy_base, indicators
from watcher.decision_engine.solution import efficacy
from watcher.decision_engine.strategy.strategies import base as strategy_base

from nova_numa_pmc import model
from nova_numa_pmc.cli import fleet_input
from nova_numa_pmc.core import fleet

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = logging.getLogger(__name__)

NAME, GOAL = 'numa_pressure_relief', 'numa_pressure'
#: Watcher's data sources that answer queries of Prometheus; it refuses both at once.
_SOURCES = ('aetos', 'prometheus')
#: (name, description, unit) of what an action plan reports.
_INDICATORS = (
    ('gained_cores', 'What guests no longer lose once they have moved.', 'cores'),
    ('migrations_count', 'Number of live migrations.', None),
    ('moved_gib', 'Memory of the guests that move.', 'GiB'),
    ('hosts_count', 'Number of hosts whose figures were read.', None),
    ('left_alone_count', 'Number of hosts left alone, for reasons that the log has.', None),
)


class _Figure(indicators.IndicatorSpecification):
    """A figure of an action plan."""

    schema = {'type': 'number', 'minimum': 0}


class _Efficacy(efficacy_base.EfficacySpecification):
    """What an action plan reports, of which the gain is what it is judged by."""

    def get_indicators_specifications(self) -> list[_Figure]:
        return [_Figure(*indicator) for indicator in _INDICATORS]

    def get_global_efficacy_indicator(self, indicators_map: Any) -> list[efficacy.Indicator]:
        return [efficacy.Indicator(*_INDICATORS[0], indicators_map.gained_cores)]


class NumaPressure(goal_base.Goal):
    """No guest waits for CPUs or memory traffic on one host while others have them free."""

    @classmethod
    def get_name(cls) -> str:
        return GOAL

    @classmethod
    def get_display_name(cls) -> str:
        return 'NUMA pressure'

    get_translatable_display_name = get_display_name

    @classmethod
    def get_efficacy_specification(cls) -> _Efficacy:
        return _Efficacy()


class NumaPressureRelief(strategy_base.BaseStrategy):
    """Live-migrate the guests whose leaving relieves saturated hosts most for what it costs.

    The hosts are those of the audit's scope that are up, enabled, and have figures. What Watcher
    knows of Nova goes before the figures: a guest that is elsewhere, excluded, locked or not
    active stays, and so does one whose migration failed within a day.
    """

    @classmethod
    def get_name(cls) -> str:
        return NAME

    @classmethod
    def get_display_name(cls) -> str:
        return 'Relief of NUMA pressure across hosts'

    get_translatable_display_name = get_display_name

    @classmethod
    def get_goal_name(cls) -> str:
        return GOAL

    @classmethod
    def get_schema(cls) -> dict[str, Any]:
        return {
            'properties': {
                'moves': {
                    'description': 'The most guests that one action plan moves.',
                    'type': 'integer',
                    'minimum': 1,
                    'maximum': 10_000,
                    'default': 10,
                },
                'memory_gib': {
                    'description': 'The most memory that one action plan moves [GiB].',
                    'type': 'integer',
                    'minimum': 1,
                    'default': 256,
                },
                'match': {
                    'description': 'Only hosts whose metrics have these labels: cluster="a"',
                    'type': 'string',
                    'default': '',
                },
            }
        }

    @functools.cached_property
    def datasource_backend(self) -> Any:
        """Watcher's data source for queries of Prometheus, whichever is configured.

        Not the base class's, which hides why one cannot be used.
        """
        settings = self.config if self.config.datasources else cfg.CONF.watcher_datasources
        for name in _SOURCES:
            if name in settings.datasources:
                return getattr(manager.DataSourceManager(settings, self.osc), name)
        raise fleet_input.FleetError(
            'set datasources in [watcher_strategies.%s] to one of: %s'
            % (NAME, ', '.join(_SOURCES))
        )

    def pre_execute(self) -> None:
        self._pre_execute()

    def do_execute(self, audit: Any = None) -> None:
        """Add the migrations of a plan to the solution.

        :raises FleetError: there are no figures; a continuous audit, which a failure would end,
            plans nothing instead, and is due again
        """
        hosts: dict[str, fleet.FleetHost] = {}
        try:
            hosts = self._hosts()
        except fleet_input.FleetError as error:
            if audit.audit_type != 'CONTINUOUS':
                raise
            LOG.error('this round plans nothing: %s', error)
        parameters = self.input_parameters
        budgets = fleet.Budgets(parameters.moves, parameters.memory_gib * model.GIB)
        plan = fleet.plan(hosts, budgets, time.time())
        for name, reason in plan.left_alone:
            LOG.info('host %s is left alone: %s', name, fleet.TEXTS[reason])
        for move in plan.moves:
            LOG.info('%r', move)
            nodes = map(self.compute_model.get_node_by_name, (move.source, move.target))
            instance = self.compute_model.get_instance_by_uuid(move.uuid)
            self.add_action_migrate(instance, 'live', *nodes)
        self.solution.set_efficacy_indicators(
            gained_cores=sum(move.gain_cores for move in plan.moves),
            migrations_count=len(plan.moves),
            moved_gib=sum(move.memory_bytes for move in plan.moves) / model.GIB,
            hosts_count=len(hosts),
            left_alone_count=len(plan.left_alone),
        )

    def post_execute(self) -> None:
        self.solution.model = self.compute_model

    def _hosts(self) -> dict[str, fleet.FleetHost]:
        """Return the hosts that Nova uses and that have figures.

        :raises FleetError: there are none
        """
        hosts, problems = fleet_input.from_series(self._ask, self.input_parameters.match)
        for problem in problems:
            LOG.warning('a host is left out: %s', problem)
        failed, usable = self._failed_uuids(), {}
        for node in self.compute_model.get_all_compute_nodes().values():
            if node.hostname not in hosts or (node.state, node.status) != ('up', 'enabled'):
                LOG.info('host %s is left out: no figures, down or disabled', node.hostname)
                continue
            movable = {
                instance.uuid
                for instance in self.compute_model.get_node_instances(node)
                if instance.state == 'active'
                and not (instance.watcher_exclude or instance.locked or instance.uuid in failed)
            }
            host = hosts[node.hostname]
            guests = tuple(
                guest if guest.uuid in movable else guest._replace(why_fixed='watcher')
                for guest in host.guests
            )
            usable[node.hostname] = host._replace(guests=guests)
        if not usable:
            raise fleet_input.FleetError(
                'no host of the scope is up, enabled, and has figures of nova-numa-agent; those '
                'that have some: %s' % (', '.join(sorted(hosts)[:10]) or 'none')
            )
        return usable

    def _ask(self, query: str) -> Iterable[Any]:
        """Return the series of an instant query."""
        try:
            found = self.datasource_backend.prometheus.query(query)
        except fleet_input.FleetError:
            raise
        except Exception as error:  # what the client and what it uses raise is undocumented
            raise fleet_input.FleetError('no answer of the data source: %r' % error) from error
        return [{'metric': one.labels, 'value': (one.timestamp, one.value)} for one in found]

    def _failed_uuids(self) -> set[str]:
        """Return the guests of which an action failed within a day."""
        since = datetime.datetime.fromtimestamp(
            time.time() - fleet.SETTLED_S, datetime.timezone.utc
        )
        filters = {'state': 'FAILED', 'updated_at__gt': since.replace(tzinfo=None)}
        failed = objects.Action.list(self.ctx, filters=filters)
        return {action.input_parameters.get('resource_id', '') for action in failed}
