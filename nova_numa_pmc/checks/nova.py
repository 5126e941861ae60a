# SPDX-License-Identifier: Apache-2.0
"""Check that Nova's services run, load our parts, and have options with which these count.

nova/compute/monitors/__init__.py shows how Nova loads monitors: names without a namespace are in
``cpu``, only one monitor of each namespace is loaded, and an entry point's target has to be in
Nova's own package ``nova.compute.monitors.cpu``. Nova's options are described in its nova/conf.
oslo.config and the hook ignore options that do
not exist: misspelt ones, and those that an earlier version had.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.conf import compute as compute_conf, opts, scheduler as scheduler_conf
from nova_numa_pmc.core.finding import ERROR, NOTE, WARNING, Finding
from nova_numa_pmc.host import services
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from nova_numa_pmc.checks.interpreter import InterpreterModules
    from nova_numa_pmc.host.nova_conf import NovaConf
    from nova_numa_pmc.host.services import Process

    #: What a rule reads, by name; its texts name the same values.
    _Values = Mapping[str, Any]

#: The full name of our monitor in ``compute_monitors``.
NAME = 'cpu.numa_pmc'
WEIGHER = 'nova_numa_pmc.scheduler.weigher.NUMAPressureWeigher'
FILTER = 'nova_numa_pmc.scheduler.filter.NUMAPressureFilter'
_FILTER_NAME = FILTER.rpartition('.')[2]
_STOCK_WEIGHERS = 'nova.scheduler.weights.all_weighers'
_STOCK_FILTERS = 'nova.scheduler.filters.all_filters'
_SCHEDULER, _OURS, _NOTIFICATIONS = (
    'filter_scheduler',
    'numa_pmc',
    'oslo_messaging_notifications',
)
#: Update intervals of nova-compute longer than this are reported; Nova's default is 60 s.
_INTERVAL_LONG_S = 300
#: Notification drivers that never block.
_SILENT = frozenset({'', 'noop', 'log', 'test'})
#: Multipliers of those of Nova's weighers that distinguish hosts for any guest, whatever its
#: server group, devices and image. That of the number of instances is 0 by default.
_STOCK_MULTIPLIERS = (
    'cpu_weight_multiplier',
    'ram_weight_multiplier',
    'disk_weight_multiplier',
    'hypervisor_version_weight_multiplier',
    'num_instances_weight_multiplier',
    'io_ops_weight_multiplier',
)
#: ``penalty_floor`` for clouds that fill one host after another. It has to be below
#: :data:`_SATURATED_PENALTY`, or saturated hosts have no penalty.
PACKING_FLOOR = 0.48
#: Lowest penalty, without a floor, of a host whose cores are all wanted: half of the demand that a
#: guest adds there waits.
_SATURATED_PENALTY = 0.5


class Rule(Record):
    """A finding that follows from options.

    :param option: (name, group) of the option whose file the finding names
    :param applies: whether the values lead to the finding; written so that NaN, for which every
        comparison is false, does
    :param message, remedy: texts of the finding, with ``%(name)s`` for a value
    """

    code: str
    severity: str
    option: tuple[str, str]
    applies: Callable[[_Values], bool]
    message: str
    remedy: str


_MONITORS, _INTERVAL = ('compute_monitors', 'DEFAULT'), ('update_resources_interval', 'DEFAULT')
_WEIGHED = ('weight_setting', 'metrics')
_EVERY_AUDIT = 'remove the option (0: every 60 s)'

COMPUTE_RULES = (
    Rule(
        'monitor-not-enabled',
        ERROR,
        _MONITORS,
        lambda v: NAME not in v['monitors'],
        'compute_monitors does not include cpu.numa_pmc: the scheduler does not learn this '
        "host's pressure",
        '[DEFAULT] compute_monitors = cpu.numa_pmc, then restart nova-compute',
    ),
    Rule(
        'monitor-conflict',
        ERROR,
        _MONITORS,
        lambda v: NAME in v['monitors'] and v['other_monitors'],
        'compute_monitors includes %(other_monitors)s besides cpu.numa_pmc: Nova loads only one '
        'monitor in the namespace cpu, the first one that it finds',
        'keep only cpu.numa_pmc; with [numa_pmc] cpu_metrics = true it also sends '
        "virt_driver's metrics",
    ),
    Rule(
        'update-interval-off',
        ERROR,
        _INTERVAL,
        lambda v: v['interval_s'] < 0,
        'update_resources_interval = %(interval_s)d: nova-compute never sends its metrics',
        _EVERY_AUDIT,
    ),
    Rule(
        'update-interval-long',
        WARNING,
        _INTERVAL,
        lambda v: v['interval_s'] > _INTERVAL_LONG_S,
        'update_resources_interval = %(interval_s)d: the scheduler uses pressures that are up to '
        '%(interval_s)d s old',
        _EVERY_AUDIT,
    ),
    Rule(
        'cpu-metrics-off',
        ERROR,
        _WEIGHED,
        lambda v: v['weighed'] and NAME in v['monitors'] and not v['cpu_metrics'],
        '[metrics] weight_setting names %(weighed)s, which the numa_pmc monitor does not send: '
        'with required = true, requests fail because of that',
        '[numa_pmc] cpu_metrics = true, then restart nova-compute',
    ),
    Rule(
        'notifications-endless',
        WARNING,
        ('driver', _NOTIFICATIONS),
        lambda v: v['drivers'] and v['monitors'] and v['retry'] < 0,
        'notifications are retried forever (driver = %(drivers)s, retry = -1): nova-compute sends '
        'one with its metrics while claims wait, so an unreachable message bus would block new '
        'instances',
        '[oslo_messaging_notifications] retry = 1',
    ),
)

_CLASSES, _ENABLED = ('weight_classes', _SCHEDULER), ('enabled_filters', _SCHEDULER)
_MODE, _MULTIPLIER, _FLOOR = (
    (name, _OURS) for name in ('mode', 'weight_multiplier', 'penalty_floor')
)
_LAST = '[filter_scheduler] weight_classes = %(last)s'
_BESIDE_STOCK = '[filter_scheduler] weight_classes = %s,%s' % (_STOCK_WEIGHERS, WEIGHER)
_NOT_LAST = (
    'NUMAPressureWeigher is not the last of weight_classes, so it does not know the weights that '
    'follow: '
)
_WEAK = (
    "[numa_pmc] weight_multiplier = %(multiplier)g: Nova's own weighers add up to as much as "
    '%(stock)g, and can thus outweigh the penalty of a saturated host (%(saturated)g)'
)

SCHEDULER_RULES = (
    Rule(
        'weigher-not-enabled',
        ERROR,
        _CLASSES,
        lambda v: not v['has_weigher'],
        'weight_classes does not include the weigher: hosts are chosen without regard to their '
        'pressure',
        _BESIDE_STOCK,
    ),
    Rule(
        'weigher-alone',
        WARNING,
        _CLASSES,
        lambda v: v['classes'] == [WEIGHER],
        "weight_classes names only NUMAPressureWeigher, without Nova's own weighers: RAM, disk, "
        'server groups and failed builds no longer count',
        _BESIDE_STOCK,
    ),
    Rule(
        'weigher-not-last',
        WARNING,
        _CLASSES,
        lambda v: v['has_weigher'] and not v['is_last'] and v['mode'] == scheduler_conf.SHADOW,
        _NOT_LAST + 'the decisions that it logs are not those of Nova',
        _LAST,
    ),
    Rule(
        'weigher-not-last',
        NOTE,
        _CLASSES,
        lambda v: v['has_weigher'] and not v['is_last'] and v['mode'] != scheduler_conf.SHADOW,
        _NOT_LAST + 'if the aggregate of a host sets numa_pmc_mode to shadow, the decisions that '
        'it logs are not those of Nova',
        _LAST,
    ),
    Rule(
        'weigher-off',
        WARNING,
        _MODE,
        lambda v: v['has_weigher'] and v['mode'] == scheduler_conf.OFF,
        '[numa_pmc] mode = off: the weigher has no effect',
        'set it to on, which is the default, or shadow',
    ),
    Rule(
        'weigher-shadow',
        NOTE,
        _MODE,
        lambda v: v['has_weigher'] and v['mode'] == scheduler_conf.SHADOW,
        '[numa_pmc] mode = shadow: the weigher only logs what it would change',
        'set it to on, which is the default, when the logged decisions are right',
    ),
    Rule(
        'weigher-off',
        WARNING,
        _MULTIPLIER,
        lambda v: v['has_weigher'] and not v['multiplier'] > 0,
        '[numa_pmc] weight_multiplier = %(multiplier)g: the weigher has no effect',
        'set it above 0; 500 is the default',
    ),
    Rule(
        'weigher-weak',
        WARNING,
        _MULTIPLIER,
        lambda v: v['is_weak'] and v['floor'] < _SATURATED_PENALTY,
        _WEAK,
        'set it above %(multiplier_min)g',
    ),
    Rule(
        'weigher-weak',
        WARNING,
        _MULTIPLIER,
        lambda v: v['is_weak'] and not v['floor'] < _SATURATED_PENALTY,
        _WEAK,
        'set penalty_floor below %g' % _SATURATED_PENALTY,
    ),
    Rule(
        'floor-not-for-packing',
        NOTE,
        _FLOOR,
        lambda v: v['has_weigher'] and v['ram'] < 0 and v['floor'] < PACKING_FLOOR,
        'ram_weight_multiplier is below 0, so that hosts are filled one after another, but the '
        'weigher avoids hosts where guests would lose more than %(floor)g of what a new guest '
        'wants',
        '[numa_pmc] penalty_floor = %g, and [filter_scheduler] host_subset_size = 5'
        % PACKING_FLOOR,
    ),
    Rule(
        'filter-dotted-name',
        ERROR,
        _ENABLED,
        lambda v: FILTER in v['enabled'],
        'enabled_filters contains a dotted path, but takes class names: nova-scheduler does not '
        'start',
        'in enabled_filters write %s' % _FILTER_NAME,
    ),
    Rule(
        'filter-not-available',
        ERROR,
        ('available_filters', _SCHEDULER),
        lambda v: _FILTER_NAME in v['enabled'] and FILTER not in v['available'],
        'enabled_filters includes %s, but available_filters does not: nova-scheduler does not '
        'start' % _FILTER_NAME,
        '[filter_scheduler] add the line available_filters = %s' % FILTER,
    ),
    Rule(
        'filter-not-enabled',
        WARNING,
        _ENABLED,
        lambda v: not {FILTER, _FILTER_NAME} & set(v['enabled']),
        "enabled_filters does not include %s: a flavor's numa_pmc:max_pressure and "
        'numa_pmc:policy=one_node do not affect which host is chosen' % _FILTER_NAME,
        '[filter_scheduler] add the line available_filters = %s, and %s to enabled_filters'
        % (FILTER, _FILTER_NAME),
    ),
    Rule(
        'filter-alone',
        WARNING,
        ('available_filters', _SCHEDULER),
        lambda v: FILTER in v['available'] and _STOCK_FILTERS not in v['available'],
        'available_filters includes %s but not %s: only the filters listed there can be enabled'
        % (_FILTER_NAME, _STOCK_FILTERS),
        '[filter_scheduler] add the line available_filters = %s' % _STOCK_FILTERS,
    ),
    Rule(
        'subset-herd',
        WARNING,
        ('host_subset_size', _SCHEDULER),
        lambda v: v['subset'] <= 1 and not v['has_jitter'],
        'host_subset_size = 1: requests that arrive within seconds of each other all get the same '
        'host, as none of them is counted yet',
        '[numa_pmc] mode = on with NUMAPressureWeigher in effect, or [filter_scheduler] '
        'host_subset_size = 5',
    ),
    Rule(
        'floor-herd',
        NOTE,
        ('host_subset_size', _SCHEDULER),
        lambda v: v['subset'] <= 1 and v['has_jitter'] and not v['floor'] <= 0,
        '[numa_pmc] penalty_floor = %(floor)g: hosts where less than that would be lost have no '
        'jitter, so with host_subset_size = 1 requests that arrive within seconds of each other '
        'all get the same one of them',
        '[filter_scheduler] host_subset_size = 5',
    ),
    Rule(
        'cpu-metrics-weighed',
        NOTE,
        _WEIGHED,
        lambda v: v['weighed'] and v['has_weigher'],
        '[metrics] weight_setting names %(weighed)s, which the numa_pmc monitor sends only with '
        'cpu_metrics = true: with required = true, requests fail for a host that does not send '
        'them',
        '[numa_pmc] cpu_metrics = true in nova.conf of every compute host',
    ),
)


def check_compute(conf: NovaConf) -> Iterator[Finding]:
    """Check the options by which nova-compute loads our monitor and sends its metrics."""
    # All are read, because an invalid value is added to ``conf.findings``.
    ours = {option.name: conf.get(option.name, _OURS) for option in compute_conf.OPTIONS}
    # Nova completes the names.
    names = [
        name.strip().removeprefix('nova.compute.monitors.') for name in conf.get(_MONITORS[0])
    ]
    monitors = [name if '.' in name else 'cpu.' + name for name in names if name]
    others = [name for name in monitors if name.startswith('cpu.') and name != NAME]
    drivers = [name for name in conf.get('driver', _NOTIFICATIONS) if name not in _SILENT]
    values = {
        'monitors': monitors,
        'other_monitors': ', '.join(others),
        'interval_s': conf.get(_INTERVAL[0]),
        'weighed': _weighed_cpu_metrics(conf),
        'cpu_metrics': ours['cpu_metrics'],
        'drivers': ', '.join(drivers),
        'retry': conf.get('retry', _NOTIFICATIONS),
    }
    return _apply(COMPUTE_RULES, values, conf)


def check_scheduler(conf: NovaConf) -> Iterator[Finding]:
    """Check the options by which nova-scheduler chooses hosts by pressure."""
    # All are read, because an invalid value is added to ``conf.findings``.
    ours = {option.name: conf.get(option.name, _OURS) for option in scheduler_conf.OPTIONS}
    classes = list(conf.get(*_CLASSES))
    mode, multiplier, floor = (ours[name] for name, _ in (_MODE, _MULTIPLIER, _FLOOR))
    has_weigher = WEIGHER in classes
    stock = sum(abs(conf.get(name, _SCHEDULER)) for name in _STOCK_MULTIPLIERS)
    saturated = _SATURATED_PENALTY - floor
    values = {
        'classes': classes,
        'has_weigher': has_weigher,
        'is_last': classes[-1:] == [WEIGHER],
        'last': ','.join([*(name for name in classes if name != WEIGHER), WEIGHER]),
        'mode': mode,
        'multiplier': multiplier,
        'floor': floor,
        'ram': conf.get('ram_weight_multiplier', _SCHEDULER),
        'stock': stock,
        'saturated': multiplier * max(0.0, saturated),
        'multiplier_min': stock / saturated if saturated else float('inf'),
        'is_weak': has_weigher and multiplier > 0 and not multiplier * saturated > stock,
        'has_jitter': has_weigher and mode == scheduler_conf.ON and multiplier > 0,
        'enabled': conf.get(*_ENABLED),
        'available': conf.get('available_filters', _SCHEDULER),
        'subset': conf.get('host_subset_size', _SCHEDULER),
        'weighed': _weighed_cpu_metrics(conf),
    }
    return _apply(SCHEDULER_RULES, values, conf)


def _apply(rules: Iterable[Rule], values: _Values, conf: NovaConf) -> Iterator[Finding]:
    for rule in rules:
        if rule.applies(values):
            yield Finding(
                rule.code,
                rule.severity,
                rule.message % values,
                rule.remedy % values,
                conf.file_of(*rule.option),
            )


def _weighed_cpu_metrics(conf: NovaConf) -> str:
    """Return the CPU metrics that Nova's MetricsWeigher weighs."""
    names = [pair.partition('=')[0].strip() for pair in conf.get(*_WEIGHED)]
    return ', '.join(name for name in names if name.startswith('cpu.'))


def check_monitor_loadable(modules: InterpreterModules) -> Iterator[Finding]:
    """Check that nova-compute's Python finds the entry point, the shim and the package."""
    if not modules.nova:
        message = '%s cannot import Nova' % modules.python
        yield Finding('monitor-not-asked', NOTE, message, 'run this where nova-compute runs')
        return
    runs = '%s, which runs nova-compute, ' % modules.python
    checkout = 'in the checkout of nova-numa-pmc: '
    remedy = checkout + '%s -m pip install --no-deps .' % modules.python
    if not modules.package:
        text = runs + 'cannot import nova_numa_pmc'
        yield Finding('monitor-package-missing', ERROR, text, remedy)
    elif not modules.installed:
        text = runs + 'has no entry point numa_pmc in nova.compute.monitors.cpu'
        yield Finding('monitor-entry-point-missing', ERROR, text, remedy)
    if not modules.shim:
        text = 'the module numa_pmc is missing from %s' % (modules.monitors or 'Nova')
        if modules.package and modules.monitors:
            # pip has put it beside the package, which is not in the prefix of this Nova, or it is
            # editable.
            remedy = '%scp shim/numa_pmc.py %s/ and restart nova-compute' % (
                checkout,
                modules.monitors,
            )
        yield Finding('monitor-shim-missing', ERROR, text, remedy, modules.monitors)


def check_scheduler_loadable(modules: InterpreterModules) -> Iterator[Finding]:
    """Check that nova-scheduler's Python can import the package."""
    if not modules.nova:
        message = '%s cannot import Nova' % modules.python
        remedy = 'run this as root where nova-scheduler runs'
        yield Finding('scheduler-not-asked', NOTE, message, remedy)
    elif not modules.package:
        yield Finding(
            'scheduler-package-missing',
            ERROR,
            '%s, which runs nova-scheduler, cannot import nova_numa_pmc: nova-scheduler does not '
            'start while its weigher or filter is configured' % modules.python,
            'install the nova-numa-pmc wheel with %s -m pip' % modules.python,
        )


def check_service(
    name: str, process: Process | None, conf: NovaConf, required: bool, refusal: str = ''
) -> Iterator[Finding]:
    """Check a service.

    :param name: its name ('nova-compute')
    :param process: the service; None: it is not running
    :param conf: its configuration
    :param required: whether it has to be configured even if it is not running
    :param refusal: why a process of its unit is not believed
    """
    if process is None:
        yield Finding(
            '%s-not-running' % name,
            WARNING if refusal else NOTE,
            refusal or '%s is not running here' % name,
            services.REFUSAL_REMEDY if refusal else 'start it, or use --role to say what to check',
        )
    if not conf.files:
        yield from conf.findings or [
            Finding(
                'nova-conf-missing',
                ERROR if process or required else WARNING,
                'no configuration file of %s found' % name,
                'specify it with --nova-conf',
            )
        ]
    yield from check_restarted(
        process, conf, {path: os.stat(path).st_mtime for path in conf.files}
    )


def check_restarted(
    process: Process | None, conf: NovaConf, changed_s: Mapping[str, float]
) -> Iterator[Finding]:
    """Check that a service has read its configuration files since they last changed.

    :param process: the service; None: it is not running
    :param changed_s: {path: time of the last change [s since the epoch]}
    """
    if process is None or process.started_s is None:
        return
    changed_paths = [path for path in conf.files if changed_s.get(path, 0) > process.started_s]
    if changed_paths:
        yield Finding(
            '%s-not-restarted' % process.name,
            WARNING,
            '%s (pid %d) was started before %s last changed'
            % (process.name, process.pid, ', '.join(changed_paths)),
            'restart %s' % process.name,
            changed_paths[0],
        )


def check_our_group(paths: Iterable[str]) -> Iterator[Finding]:
    """Check the group ``[numa_pmc]`` of Nova's configuration files."""
    options = [*scheduler_conf.OPTIONS, *compute_conf.OPTIONS]
    known = {(scheduler_conf.GROUP.name, option.dest) for option in options}
    for path in paths:
        yield from check_unknown(path, known, shared=True)


def check_unknown(
    path: str, known: Collection[tuple[str, str]], shared: bool = False
) -> Iterator[Finding]:
    """Check that all that a file sets is an option, as :func:`opts.find_unknown` does."""
    for message in opts.find_unknown(path, known, shared):
        remedy = 'correct its name or its group, or remove it'
        yield Finding('option-unknown', WARNING, '%s: %s' % (path, message), remedy, path)
