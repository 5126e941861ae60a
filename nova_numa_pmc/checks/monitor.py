# SPDX-License-Identifier: Apache-2.0
"""Check that nova-compute loads the compute monitor and sends its metrics, or find the reason.

nova/compute/monitors/__init__.py shows how Nova loads monitors: names without a namespace are in
``cpu``, only one monitor of each namespace is loaded, and an entry point's target has to be in
Nova's own package ``nova.compute.monitors.cpu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import finding
from nova_numa_pmc.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nova_numa_pmc.checks.interpreter import InterpreterModules
    from nova_numa_pmc.host.nova_conf import NovaConf

#: The full name of our monitor in ``compute_monitors``.
NAME = 'cpu.numa_pmc'
TARGET = 'nova.compute.monitors.cpu.numa_pmc'
_NAMESPACE = 'nova.compute.monitors.'
#: Update intervals of nova-compute longer than this are reported; Nova's default is 60 s.
_INTERVAL_LONG_S = 300
_NOTIFICATIONS = 'oslo_messaging_notifications'
#: Notification drivers that never block.
_SILENT = frozenset({'', 'noop', 'log', 'test'})


def enabled_monitors(conf: NovaConf) -> list[str]:
    """Return the names in ``compute_monitors`` as 'cpu.NAME', as Nova completes them."""
    names = [name.strip() for name in conf.get('compute_monitors')]
    names = [name if '.' in name else 'cpu.' + name for name in names if name]
    return [
        name.partition(_NAMESPACE)[2] if name.startswith(_NAMESPACE) else name for name in names
    ]


def check_enabled(conf: NovaConf) -> Iterator[Finding]:
    """Check that ``compute_monitors`` names our monitor and no other CPU monitor."""
    names = enabled_monitors(conf)
    file = conf.file_of('compute_monitors')
    if NAME not in names:
        yield Finding(
            'monitor-not-enabled',
            finding.ERROR,
            "compute_monitors does not include %s: the scheduler does not learn this host's "
            'pressure' % NAME,
            '[DEFAULT] compute_monitors = %s, then restart nova-compute' % NAME,
            file,
        )
    others = [name for name in names if name.startswith('cpu.') and name != NAME]
    if others and NAME in names:
        yield Finding(
            'monitor-conflict',
            finding.ERROR,
            'compute_monitors includes %s besides cpu.numa_pmc: Nova loads only one monitor in '
            'the namespace cpu, the first one that it finds' % ', '.join(others),
            "keep only %s; with [numa_pmc] cpu_metrics = true it also sends virt_driver's metrics"
            % NAME,
            file,
        )


def check_interval(conf: NovaConf) -> Iterator[Finding]:
    """Check that nova-compute sends metrics often enough."""
    interval_s = conf.get('update_resources_interval')
    file = conf.file_of('update_resources_interval')
    if interval_s < 0:
        yield Finding(
            'update-interval-off',
            finding.ERROR,
            'update_resources_interval = %d: nova-compute never sends its metrics' % interval_s,
            'remove the option (0: every 60 s)',
            file,
        )
    elif interval_s > _INTERVAL_LONG_S:
        yield Finding(
            'update-interval-long',
            finding.WARNING,
            'update_resources_interval = %d: the scheduler uses pressures that are up to %d s old'
            % (interval_s, interval_s),
            'remove the option (0: every 60 s)',
            file,
        )


def weighed_cpu_metrics(conf: NovaConf) -> list[str]:
    """Return the CPU metrics that Nova's MetricsWeigher weighs."""
    names = [pair.partition('=')[0].strip() for pair in conf.get('weight_setting', 'metrics')]
    return [name for name in names if name.startswith('cpu.')]


def check_cpu_metrics(conf: NovaConf) -> Iterator[Finding]:
    """Check that the CPU metrics that Nova's MetricsWeigher weighs are sent."""
    metrics = weighed_cpu_metrics(conf)
    if metrics and NAME in enabled_monitors(conf) and not conf.get('cpu_metrics', 'numa_pmc'):
        yield Finding(
            'cpu-metrics-off',
            finding.ERROR,
            '[metrics] weight_setting names %s, which the numa_pmc monitor does not send: with '
            'required = true, requests fail because of that' % ', '.join(metrics),
            '[numa_pmc] cpu_metrics = true, then restart nova-compute',
            conf.file_of('weight_setting', 'metrics'),
        )


def read_options(conf: NovaConf) -> None:
    """Read the monitor's own options, so that an invalid value is added to ``conf.findings``."""
    for name in ('metrics_deadband', 'metrics_heartbeat'):
        conf.get(name, 'numa_pmc')


def check_notifications(conf: NovaConf) -> Iterator[Finding]:
    """Check that nova-compute gives up a notification that cannot be delivered."""
    drivers = [name for name in conf.get('driver', _NOTIFICATIONS) if name not in _SILENT]
    if drivers and enabled_monitors(conf) and conf.get('retry', _NOTIFICATIONS) < 0:
        yield Finding(
            'notifications-endless',
            finding.WARNING,
            'notifications are retried forever (driver = %s, retry = -1): nova-compute sends '
            'one with its metrics while claims wait, so an unreachable message bus would block '
            'new instances' % drivers[0],
            '[%s] retry = 1' % _NOTIFICATIONS,
            conf.file_of('driver', _NOTIFICATIONS),
        )


def check_loadable(modules: InterpreterModules, installed: str | None = None) -> Iterator[Finding]:
    """Check that nova-compute's Python finds the entry point, the shim and the package.

    :param installed: path to which the shim was installed; None: nowhere
    """
    pip = 'in the checkout of nova-numa-pmc: %s -m pip install --no-deps .' % modules.python
    if not modules.nova:
        yield Finding(
            'monitor-not-asked',
            finding.NOTE,
            '%s cannot import Nova' % modules.python,
            'run this where nova-compute runs',
        )
        return
    if not modules.package:
        yield Finding(
            'monitor-package-missing',
            finding.ERROR,
            '%s, which runs nova-compute, cannot import nova_numa_pmc' % modules.python,
            pip,
        )
    yield from _check_entry_point(modules, pip)
    if not modules.shim:
        yield _shim_missing(modules, installed, pip)


def _check_entry_point(modules: InterpreterModules, pip: str) -> Iterator[Finding]:
    targets = [target for name, target in modules.points if name == 'numa_pmc']
    if not targets:
        yield Finding(
            'monitor-entry-point-missing',
            finding.ERROR,
            '%s, which runs nova-compute, has no entry point numa_pmc in nova.compute.monitors.cpu'
            % modules.python,
            pip,
        )
    elif not any(target.startswith(TARGET + ':') for target in targets):
        yield Finding(
            'monitor-entry-point-elsewhere',
            finding.ERROR,
            'the entry point numa_pmc points to %s: Nova loads monitors only from its own package'
            % ', '.join(targets),
            pip,
        )


def _shim_missing(modules: InterpreterModules, installed: str | None, pip: str) -> Finding:
    directories = ', '.join(modules.monitors) or 'nowhere'
    if installed is None:
        message = 'the module numa_pmc is missing from %s' % directories
        remedy = pip + '; an editable install (pip install -e) does not put it there'
    else:
        message = (
            'the module numa_pmc was installed as %s, but Nova loads its monitors from %s'
            % (installed, directories)
        )
        remedy = 'cp %s %s/ and restart nova-compute' % (installed, directories)
    return Finding(
        'monitor-shim-missing', finding.ERROR, message, remedy, installed or directories
    )
