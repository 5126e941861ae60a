# SPDX-License-Identifier: Apache-2.0
"""The options of nova-numa-pmc.conf, as oslo.config reads and describes them.

The groups ``[counters]`` and ``[agent]`` are described here. The options that the libvirt hook
reads are in :mod:`nova_numa_pmc.conf.host_options`, which is cheap to import, and only passed on
here. The options that Nova's services read from nova.conf are in ``conf/compute.py`` and
``conf/scheduler.py``. No option is registered at import.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import os
import re
from typing import TYPE_CHECKING, Any

from oslo_config import cfg, types

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import rates
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from nova_numa_pmc.conf.host_options import HostOptions

#: The sources of the ladder of evidence, best first.
SOURCES = GUESTS, CPUS, RESCTRL, PAGES = 'guests', 'cpus', 'resctrl', 'pages'
#: Values of the option ``rebalance``.
OFF, DRY_RUN, AUTO = 'off', 'dry-run', 'auto'
_REBALANCE_OPTIONS = plan_records.RebalanceOptions()
_KINDS: dict[type, Callable[..., cfg.Opt]] = {
    bool: cfg.BoolOpt,
    int: cfg.IntOpt,
    float: cfg.FloatOpt,
    str: cfg.StrOpt,
    host_options.NodeList: functools.partial(cfg.StrOpt, regex=host_options.NodeList.REGEX),
}


class CounterOptions(Record):
    """The group ``[counters]``, checked.

    :param sources: members of :data:`SOURCES`, in the order in which they are tried
    :param events: (role, event) pairs that override the events chosen
    :param bandwidth_max_bytes_per_sec: (node id, bytes per second) pairs
    :param placement_options: the group ``[placement]``
    """

    enabled: bool = True
    interval_s: float = 5.0
    sources: tuple[str, ...] = SOURCES
    events: tuple[tuple[str, str], ...] = ()
    bandwidth_max_bytes_per_sec: tuple[tuple[int, float], ...] = ()
    placement_options: model.PlacementOptions = model.PlacementOptions()


class AgentOptions(Record):
    """The group ``[agent]``, checked, and the other groups that the agent needs.

    :param host_options: the groups that the hook reads as well
    :param counter_options: the group ``[counters]``
    :param rebalance: :data:`OFF`, :data:`DRY_RUN` or :data:`AUTO`
    """

    host_options: HostOptions
    counter_options: CounterOptions = CounterOptions()
    rebalance: str = AUTO
    rebalance_options: plan_records.RebalanceOptions = _REBALANCE_OPTIONS


_DEFAULT_COUNTERS = CounterOptions()
_DEFAULT_AGENT = AgentOptions(None)  # type: ignore[arg-type]  # ``host_options`` is not read

_COUNTERS: Sequence[cfg.Opt] = [
    cfg.BoolOpt(
        'enabled',
        default=_DEFAULT_COUNTERS.enabled,
        help=(
            'Count hardware events. When false, only resctrl and pages show where guests '
            'access memory.'
        ),
    ),
    cfg.FloatOpt(
        'interval_s',
        default=_DEFAULT_COUNTERS.interval_s,
        min=0.5,
        max=3600.0,
        help=(
            'Time between two ticks [seconds]. With more than 83 guests, the agent takes at '
            'least 0.06 seconds for each guest, but no more than 10 for that. With more than '
            '40, only every second or third tick measures.'
        ),
    ),
    cfg.ListOpt(
        'sources',
        default=list(_DEFAULT_COUNTERS.sources),
        item_type=types.String(choices=SOURCES),
        help=(
            'Sources of evidence of memory accesses: for each guest, the first that works. '
            'guests: counters for each guest. cpus: counters for each CPU, divided among the '
            'guests by where they ran. resctrl: memory bandwidth monitoring. pages: where '
            'pages are and where vCPUs ran.'
        ),
    ),
    cfg.MultiStrOpt(
        'event',
        default=[],
        help=(
            'Event to count instead of the one chosen for a role, ROLE=EVENT; may be given '
            'several times. EVENT is written as for perf (cpu/event=0xd3,umask=0x1/, r53100f) '
            'or is the word none, to count nothing for the role. "nova-numa-rebalance check '
            '--events" lists the roles. One count of mem_read, mem_write or mem_traffic stands '
            'for 64 bytes, unless the kernel exports the event with another scale.'
        ),
    ),
    cfg.DictOpt(
        'node_bandwidth_max',
        default={},
        help=(
            "Maximum bandwidth of each node's memory, NODE:MB/s,... Without it, the maximum "
            'follows from the clocks of the memory controllers and from the memory modules; '
            'where neither is known, bandwidth is left out of the pressure.'
        ),
    ),
]
_AGENT: Sequence[cfg.Opt] = [
    cfg.StrOpt(
        'rebalance',
        default=_DEFAULT_AGENT.rebalance,
        choices=[
            (OFF, 'guests stay where they were placed'),
            (DRY_RUN, 'log which moves would pay, and why, but make none'),
            (AUTO, 'widen guests that wait, and move memory where that pays lastingly'),
        ],
        help='Whether running guests are moved when the load changes.',
    ),
    cfg.IntOpt(
        'moved_percent_per_day',
        default=round(100 * _REBALANCE_OPTIONS.moved_ratio_per_day),
        min=0,
        max=100000,
        help=(
            "Maximum share of the guests' memory that the agent moves per day [%], but at "
            'least what takes a minute at move_mib_per_s. 0: no memory is moved, and guests '
            'that wait are only widened.'
        ),
    ),
    cfg.IntOpt(
        'move_mib_per_s',
        default=int(_REBALANCE_OPTIONS.bytes_per_sec) >> 20,
        min=1,
        max=1 << 20,
        help='Maximum rate at which memory is moved [MiB/s].',
    ),
    cfg.BoolOpt(
        'widen',
        default=_REBALANCE_OPTIONS.widen,
        help=(
            "Let a guest also use another node's CPUs while its own node has too few CPUs "
            'for all its guests and the other node has CPUs to spare.'
        ),
    ),
]
#: The groups that the hook does not read, with their options.
_GROUPS: Sequence[tuple[cfg.OptGroup, Sequence[cfg.Opt]]] = (
    (cfg.OptGroup('counters', help='How a host is measured.'), _COUNTERS),
    (cfg.OptGroup('agent', help='What nova-numa-agent does besides measuring.'), _AGENT),
)


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return (group, options) pairs, for oslo-config-generator and Sphinx."""
    return [
        *(
            (
                cfg.OptGroup(group, help=text),
                [_opt(option) for option in host_options.OPTIONS if option.group == group],
            )
            for group, text in host_options.GROUPS
        ),
        *_GROUPS,
    ]


def _opt(option: host_options.Option) -> cfg.Opt:
    bounds: dict[str, Any] = {}
    if option.minimum is not None:
        bounds = {'min': option.minimum, 'max': option.maximum}
    return _KINDS[option.kind](option.name, default=option.default, help=option.help, **bounds)


def read(path: str = host_options.PATH) -> AgentOptions:
    """Read the operator's file; if there is none, options have their defaults.

    :raises OptionsError: the file cannot be read, or a value is invalid
    """
    with _naming_file(path):
        conf, options = _parse(path), host_options.read(path)
        group = conf.agent
        rebalance_options = plan_records.RebalanceOptions(
            moved_ratio_per_day=group.moved_percent_per_day / 100,
            bytes_per_sec=group.move_mib_per_s << 20,
            reserve_bytes=options.placement_options.reserve_bytes,
            widen=group.widen,
        )
        return AgentOptions(
            host_options=options,
            counter_options=_counter_options(conf.counters, options),
            rebalance=group.rebalance,
            rebalance_options=rebalance_options,
        )


def read_counters(path: str = host_options.PATH) -> CounterOptions:
    """Read what the operator's file says of measurement; ``[agent]`` may have invalid values.

    :raises OptionsError: the file cannot be read, or a value is invalid
    """
    with _naming_file(path):
        return _counter_options(_parse(path).counters, host_options.read(path))


def _parse(path: str) -> cfg.ConfigOpts:
    """Parse the operator's file and no other; if there is none, options have their defaults."""
    conf = cfg.ConfigOpts()
    for group, options in _GROUPS:
        conf.register_group(group)
        conf.register_opts(options, group=group)
    conf(
        [],
        project='nova-numa-pmc',
        default_config_dirs=[],
        default_config_files=[path] if os.path.exists(path) else [],
    )
    return conf


def _counter_options(group: cfg.ConfigOpts.GroupAttr, options: HostOptions) -> CounterOptions:
    """Return :class:`CounterOptions` from the values of the group.

    :param group: ``conf.counters``
    :param options: the options of the same file that the hook reads as well
    :raises OptionsError: a value is malformed; the message names its option
    """
    return CounterOptions(
        enabled=group.enabled,
        interval_s=group.interval_s,
        sources=tuple(dict.fromkeys(group.sources)),
        events=_events(group.event),
        bandwidth_max_bytes_per_sec=_bandwidths(group.node_bandwidth_max),
        placement_options=options.placement_options,
    )


def _events(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    events = {}
    for text in filter(None, texts):  # the value in the sample is empty
        role, _, event = (part.strip() for part in text.partition('='))
        if role not in rates.ROLES or not event:
            raise OptionsError(
                '[counters] event: %.80r is not ROLE=EVENT with a role from %s'
                % (text, ', '.join(rates.ROLES))
            )
        events[role] = event
    return tuple(events.items())


def _bandwidths(megabytes_by_node: Mapping[str, str]) -> tuple[tuple[int, float], ...]:
    bandwidths = []
    for node, text in megabytes_by_node.items():
        try:
            megabytes = float(text)
        except ValueError:
            megabytes = math.nan
        if not is_number(node) or not 0 < megabytes < math.inf:
            raise OptionsError(
                '[counters] node_bandwidth_max: %.80r is not NODE:MB/s' % ':'.join((node, text))
            )
        bandwidths.append((int(node), 1e6 * megabytes))
    return tuple(sorted(bandwidths))


@contextlib.contextmanager
def _naming_file(path: str) -> Iterator[None]:
    """Turn an error of oslo.config's about a file into :class:`OptionsError`, with its name."""
    try:
        yield
    except (cfg.Error, OSError, ValueError, OptionsError) as error:
        raise OptionsError('%s: %s' % (path, in_words(error))) from error


def in_words(error: Exception) -> str:
    """Return an error of oslo.config's without its file, and without its Python objects."""
    text = re.sub(r' from LocationInfo\(.*?\)(?= is not valid)', '', str(error))
    return re.sub(r'(Failed to parse .*: )?at \S+:(?=\d+, )', 'line ', text)


def find_unknown(
    path: str, known: Collection[tuple[str, str]], shared: bool = False
) -> Iterator[str]:
    """Say what a file sets that is no option: misspelt names, options in the wrong group.

    oslo.config and the hook ignore these. A file that cannot be parsed has none.

    :param known: (group, name) of each option
    :param shared: whether the file has groups of other programs; only those that resemble the
        known ones are then looked at
    """
    texts = sorted('[%s] %s' % pair for pair in known)
    groups = {group for group, _ in known}
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError):
        return
    for section, values in sections.items():
        group = section if section == 'DEFAULT' else section.lower()
        if shared and not difflib.get_close_matches(group, groups, cutoff=0.8):
            continue
        for name in values:
            if (group, name) in known:
                continue
            text = '[%s] %s' % (section, name)
            meant = [other for other in texts if other.endswith('] ' + name)]
            meant = meant or difflib.get_close_matches(text, texts, 1)
            yield 'there is no option %s, so it has no effect%s' % (
                text,
                ': did you mean %s?' % meant[0] if meant else '',
            )
