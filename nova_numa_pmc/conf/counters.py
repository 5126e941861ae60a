# SPDX-License-Identifier: Apache-2.0
"""Options of measurement: the group ``[counters]``.

Their types are those of oslo.config, because the libvirt hook reads none of these options.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from typing import TYPE_CHECKING

from oslo_config import cfg, types

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import rates
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

GROUP = cfg.OptGroup('counters', help='How a host is measured.')
#: The sources of the ladder of evidence, best first.
SOURCES = GUESTS, CPUS, RESCTRL, PAGES = 'guests', 'cpus', 'resctrl', 'pages'


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


_DEFAULT = CounterOptions()

#: The options of the group.
OPTIONS: Sequence[cfg.Opt] = [
    cfg.BoolOpt(
        'enabled',
        default=_DEFAULT.enabled,
        help=(
            'Count hardware events. When false, only resctrl and pages show where guests '
            'access memory.'
        ),
    ),
    cfg.FloatOpt(
        'interval_s',
        default=_DEFAULT.interval_s,
        min=0.5,
        max=3600.0,
        help=(
            'Time between two samples [seconds]. With more than 83 guests, the agent takes at '
            'least 0.06 seconds for each guest, but no more than 10 for that.'
        ),
    ),
    cfg.ListOpt(
        'sources',
        default=list(_DEFAULT.sources),
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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the group."""
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)


def from_conf(
    group: cfg.ConfigOpts.GroupAttr, options: host_options.HostOptions
) -> CounterOptions:
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


def parse_file(path: str, register: Callable[[cfg.ConfigOpts], object]) -> cfg.ConfigOpts:
    """Parse the operator's file and no other; if there is none, options have their defaults.

    :param register: registers the options to read
    """
    conf = cfg.ConfigOpts()
    register(conf)
    conf(
        [],
        project='nova-numa-pmc',
        default_config_dirs=[],
        default_config_files=[path] if os.path.exists(path) else [],
    )
    return conf


def read(path: str = host_options.PATH) -> CounterOptions:
    """Read the operator's file; if there is none, options have their defaults.

    :raises OptionsError: the file cannot be read, or a value is invalid
    """
    with naming_file(path):
        return from_conf(parse_file(path, register_opts).counters, host_options.read(path))


@contextlib.contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Turn an error of oslo.config's about a file into :class:`OptionsError`, with its name."""
    try:
        yield
    except (cfg.Error, OSError, ValueError, OptionsError) as error:
        raise OptionsError('%s: %s' % (path, in_words(error))) from error


def in_words(error: Exception) -> str:
    """Return an error of oslo.config's without its file, and without its Python objects."""
    text = re.sub(r' from LocationInfo\(.*?\)(?= is not valid)', '', str(error))
    return re.sub(r'(Failed to parse .*: )?at \S+:(?=\d+, )', 'line ', text)


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
