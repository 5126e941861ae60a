# SPDX-License-Identifier: Apache-2.0
"""Check that nova-scheduler and Placement choose hosts by pressure.

The options are described in Nova's nova/conf/scheduler.py and Placement's
placement/conf/placement.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc import finding
from nova_numa_pmc.checks.monitor import weighed_cpu_metrics
from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nova_numa_pmc.checks.interpreter import InterpreterModules
    from nova_numa_pmc.host.nova_conf import NovaConf

WEIGHER = 'nova_numa_pmc.scheduler.weigher.NUMAPressureWeigher'
FILTER = 'nova_numa_pmc.scheduler.filter.NUMAPressureFilter'
_STOCK_WEIGHERS = 'nova.scheduler.weights.all_weighers'
_GROUP = 'filter_scheduler'
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


def read_options(conf: NovaConf) -> None:
    """Read the scheduler's own options, so that an invalid value is added to ``conf.findings``."""
    for option in scheduler_conf.OPTIONS:
        conf.get(option.name, scheduler_conf.GROUP.name)


def check_weigher(conf: NovaConf) -> Iterator[Finding]:
    """Check that the weigher is in ``weight_classes``, in addition to Nova's own."""
    classes, file = conf.get('weight_classes', _GROUP), conf.file_of('weight_classes', _GROUP)
    if WEIGHER not in classes:
        yield Finding(
            'weigher-not-enabled',
            finding.ERROR,
            'weight_classes does not include the weigher: hosts are chosen without regard to '
            'their pressure',
            '[filter_scheduler] weight_classes = %s,%s' % (_STOCK_WEIGHERS, WEIGHER),
            file,
        )
    elif len(classes) == 1:
        yield Finding(
            'weigher-alone',
            finding.WARNING,
            "weight_classes names only NUMAPressureWeigher, without Nova's own weighers: RAM, "
            'disk, server groups and failed builds no longer count',
            '[filter_scheduler] weight_classes = %s,%s' % (_STOCK_WEIGHERS, WEIGHER),
            file,
        )
    if WEIGHER in classes:
        yield from _check_order(conf, classes)
        yield from _check_mode(conf)
        yield from _check_penalty(conf)


def _check_order(conf: NovaConf, classes: Sequence[str]) -> Iterator[Finding]:
    """Check that the weigher, which logs decisions in shadow mode, knows all other weights."""
    if classes[-1] == WEIGHER:
        return
    is_shadow = conf.get('mode', 'numa_pmc') == scheduler_conf.SHADOW
    others = [name for name in classes if name != WEIGHER]
    yield Finding(
        'weigher-not-last',
        finding.WARNING if is_shadow else finding.NOTE,
        'NUMAPressureWeigher is not the last of weight_classes, so it does not know the weights '
        'that follow: '
        + (
            'the decisions that it logs are not those of Nova'
            if is_shadow
            else 'if the aggregate of a host sets numa_pmc_mode to shadow, the decisions that it '
            'logs are not those of Nova'
        ),
        '[filter_scheduler] weight_classes = %s' % ','.join([*others, WEIGHER]),
        conf.file_of('weight_classes', _GROUP),
    )


def _check_mode(conf: NovaConf) -> Iterator[Finding]:
    """Check that the weigher is not switched off, and does not only log."""
    mode, file = conf.get('mode', 'numa_pmc'), conf.file_of('mode', 'numa_pmc')
    if mode == scheduler_conf.OFF:
        yield Finding(
            'weigher-off',
            finding.WARNING,
            '[numa_pmc] mode = off: the weigher has no effect',
            'set it to on, which is the default, or shadow',
            file,
        )
    elif mode == scheduler_conf.SHADOW:
        yield Finding(
            'weigher-shadow',
            finding.NOTE,
            '[numa_pmc] mode = shadow: the weigher only logs what it would change',
            'set it to on, which is the default, when the logged decisions are right',
            file,
        )


def _check_penalty(conf: NovaConf) -> Iterator[Finding]:
    """Check that the penalty is large enough compared with Nova's own weights."""
    multiplier = conf.get('weight_multiplier', 'numa_pmc')
    file = conf.file_of('weight_multiplier', 'numa_pmc')
    floor = conf.get('penalty_floor', 'numa_pmc')
    stock = sum(abs(conf.get(name, _GROUP)) for name in _STOCK_MULTIPLIERS)
    if not multiplier > 0:  # NaN as well
        yield Finding(
            'weigher-off',
            finding.WARNING,
            '[numa_pmc] weight_multiplier = %g: the weigher has no effect' % multiplier,
            'set it above 0; 500 is the default',
            file,
        )
    elif not multiplier * (_SATURATED_PENALTY - floor) > stock:  # NaN as well
        yield Finding(
            'weigher-weak',
            finding.WARNING,
            "[numa_pmc] weight_multiplier = %g: Nova's own weighers add up to as much as %g, and "
            'can thus outweigh the penalty of a saturated host (%g)'
            % (multiplier, stock, multiplier * max(0.0, _SATURATED_PENALTY - floor)),
            'set it above %g' % (stock / (_SATURATED_PENALTY - floor))
            if floor < _SATURATED_PENALTY
            else 'set penalty_floor below %g' % _SATURATED_PENALTY,
            file,
        )
    if conf.get('ram_weight_multiplier', _GROUP) < 0 and floor < PACKING_FLOOR:
        yield Finding(
            'floor-not-for-packing',
            finding.NOTE,
            'ram_weight_multiplier is below 0, so that hosts are filled one after another, but '
            'the weigher avoids hosts where guests would lose more than %g of what a new guest '
            'wants' % floor,
            '[numa_pmc] penalty_floor = %g, and [filter_scheduler] host_subset_size = 5'
            % PACKING_FLOOR,
            conf.file_of('penalty_floor', 'numa_pmc'),
        )


def check_filter(conf: NovaConf) -> Iterator[Finding]:
    """Check ``enabled_filters`` against ``available_filters``."""
    available = conf.get('available_filters', _GROUP)
    names = conf.get('enabled_filters', _GROUP)
    file, name = conf.file_of('enabled_filters', _GROUP), FILTER.rpartition('.')[2]
    if FILTER in names:
        yield Finding(
            'filter-dotted-name',
            finding.ERROR,
            'enabled_filters contains a dotted path, but takes class names: nova-scheduler does '
            'not start',
            'in enabled_filters write %s' % name,
            file,
        )
    elif name in names and FILTER not in available:
        yield Finding(
            'filter-not-available',
            finding.ERROR,
            'enabled_filters includes %s, but available_filters does not: nova-scheduler does '
            'not start' % name,
            '[filter_scheduler] add the line available_filters = %s' % FILTER,
            conf.file_of('available_filters', _GROUP),
        )
    elif name not in names:
        yield Finding(
            'filter-not-enabled',
            finding.WARNING,
            "enabled_filters does not include %s: a flavor's numa_pmc:max_pressure and "
            'numa_pmc:policy=one_node do not affect which host is chosen' % name,
            '[filter_scheduler] add the line available_filters = %s, and %s to enabled_filters'
            % (FILTER, name),
            file,
        )
    yield from _check_available_filters(conf, available)


def _check_available_filters(conf: NovaConf, available: Sequence[str]) -> Iterator[Finding]:
    if FILTER in available and 'nova.scheduler.filters.all_filters' not in available:
        yield Finding(
            'filter-alone',
            finding.WARNING,
            'available_filters includes NUMAPressureFilter but not '
            'nova.scheduler.filters.all_filters: '
            'only the filters listed there can be enabled',
            '[filter_scheduler] add the line available_filters = '
            'nova.scheduler.filters.all_filters',
            conf.file_of('available_filters', _GROUP),
        )


def check_host_subset(conf: NovaConf) -> Iterator[Finding]:
    """Check that simultaneous requests do not all get the same host."""
    has_jitter = (
        WEIGHER in conf.get('weight_classes', _GROUP)
        and conf.get('mode', 'numa_pmc') == scheduler_conf.ON
        and conf.get('weight_multiplier', 'numa_pmc') > 0
    )
    if conf.get('host_subset_size', _GROUP) > 1:
        return
    file, floor = conf.file_of('host_subset_size', _GROUP), conf.get('penalty_floor', 'numa_pmc')
    if not has_jitter:
        yield Finding(
            'subset-herd',
            finding.WARNING,
            'host_subset_size = 1: requests that arrive within seconds of each other all get the '
            'same host, as none of them is counted yet',
            '[numa_pmc] mode = on with NUMAPressureWeigher in effect, or [filter_scheduler] '
            'host_subset_size = 5',
            file,
        )
    elif not floor <= 0:  # NaN as well
        yield Finding(
            'floor-herd',
            finding.NOTE,
            '[numa_pmc] penalty_floor = %g: hosts where less than that would be lost have no '
            'jitter, so with host_subset_size = 1 requests that arrive within seconds of each '
            'other all get the same one of them' % floor,
            '[filter_scheduler] host_subset_size = 5',
            file,
        )


def check_cpu_metrics(conf: NovaConf) -> Iterator[Finding]:
    """Check whether Nova's MetricsWeigher needs metrics that our monitor sends only on request."""
    metrics = weighed_cpu_metrics(conf)
    if metrics and WEIGHER in conf.get('weight_classes', _GROUP):
        yield Finding(
            'cpu-metrics-weighed',
            finding.NOTE,
            '[metrics] weight_setting names %s, which the numa_pmc monitor sends only with '
            'cpu_metrics = true: with required = true, requests fail for a host that does not '
            'send them' % ', '.join(metrics),
            '[numa_pmc] cpu_metrics = true in nova.conf of every compute host',
            conf.file_of('weight_setting', 'metrics'),
        )


def check_candidates(conf: NovaConf, placement_conf: NovaConf | None) -> Iterator[Finding]:
    """Check that Placement, if it has many hosts, does not always return the same candidates.

    :param placement_conf: configuration of Placement; None: it is not on this host
    """
    if placement_conf is None or placement_conf.get(
        'randomize_allocation_candidates', 'placement'
    ):
        return
    hosts = conf.get('max_placement_results', 'scheduler')
    yield Finding(
        'candidates-not-random',
        finding.NOTE,
        'Placement gives the scheduler at most %d hosts, and always the same ones: the other '
        'hosts are never weighed' % hosts,
        'if there are more than %d hosts, set [placement] '
        'randomize_allocation_candidates = true in placement.conf' % hosts,
        placement_conf.file_of('randomize_allocation_candidates', 'placement'),
    )


def check_importable(modules: InterpreterModules) -> Iterator[Finding]:
    """Check that nova-scheduler's Python can import the package."""
    if not modules.nova:
        yield Finding(
            'scheduler-not-asked',
            finding.NOTE,
            '%s cannot import Nova' % modules.python,
            'run this as root where nova-scheduler runs',
        )
    elif not modules.package:
        yield Finding(
            'scheduler-package-missing',
            finding.ERROR,
            '%s, which runs nova-scheduler, cannot import nova_numa_pmc: nova-scheduler does not '
            'start while its weigher or filter is configured' % modules.python,
            'install the nova-numa-pmc wheel with %s -m pip' % modules.python,
        )
