# SPDX-License-Identifier: Apache-2.0
"""Show which hosts Nova would choose for guests, with our weigher and without.

It runs on a controller, with the Python that runs nova-scheduler and as a user that may read
nova.conf. It reads the hosts from Nova's databases and chooses among them with the filters and
weighers of nova.conf, twice: with our weigher (even if nova.conf does not name it or its mode is
not "on") and without. The guests have no disks, devices, server group or image properties, and
Placement is not asked: a host has room if its vCPUs and memory allow the guest. Nothing is
changed.

examples:
  nova-numa-rebalance whatif --vcpus 4 --memory 8G --count 20
  nova-numa-rebalance whatif --vcpus 4 --memory 8G --spec numa_pmc:policy=one_node \\
      --nova-conf /etc/nova/nova.conf --nova-conf trial.conf
  nova-numa-rebalance whatif --vcpus 4 --memory 8G --count 100 --json | jq .changed

exit codes: 0 shown; 1 a problem, or there is no host for a guest; 64 usage error
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.checks import interpreter
from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.json_values import printable

if TYPE_CHECKING:
    import argparse

_COUNT_MAX = 1 << 16
#: Number of hosts in the text; the JSON has all of them.
_HOSTS_SHOWN = 30
_SCHEDULER = '/usr/bin/nova-scheduler'


class NovaError(NumaPmcError):
    """Nova cannot be used by this process."""


OPTIONS = (
    *arguments.size(required=True),
    arguments.option(
        '--count',
        type=arguments.integer(_COUNT_MAX),
        default=1,
        metavar='N',
        help='place this many such guests, one after another',
    ),
    arguments.option(
        '--nova-conf',
        metavar='PATH',
        action='append',
        help='configuration file of nova-scheduler; a later one overrides earlier ones '
        '(default: /etc/nova/nova.conf)',
    ),
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Print the choices; return the exit code.

    :raises NovaError: Nova cannot be imported, or its configuration or databases not be used
    """
    size = args.vcpus, -(-args.memory >> 20), dict(args.spec), args.count
    try:
        # Imported by name: the other commands have to work without Nova.
        what_if = importlib.import_module('nova_numa_pmc.scheduler.what_if')
    except ImportError as error:
        raise NovaError(
            '%s cannot import Nova (%s): run this on a controller with the Python of '
            'nova-scheduler: %s -m nova_numa_pmc.cmd.rebalance whatif ...'
            % (
                sys.executable,
                error,
                interpreter.python_of(None, _SCHEDULER) or '(the first line of nova-scheduler)',
            )
        ) from None
    try:
        what_if.configure(args.nova_conf or ['/etc/nova/nova.conf'])
        ours, others = (list(what_if.choices(*size, with_ours)) for with_ours in (True, False))
    except Exception as error:  # of Nova, its libraries, its drivers and its database
        raise NovaError('Nova: %s: %s' % (type(error).__name__, error)) from None
    hosts = [(with_us.host, without.host) for with_us, without in zip(ours, others)]
    changed = sum(with_us != without for with_us, without in hosts)
    weights = ours[-1].weights
    pairs = [{'with': with_us, 'without': without} for with_us, without in hosts]
    data = {'changed': changed, 'choices': pairs, 'weights': weights}
    summary = '%d of %d guests get another host with our weigher' % (changed, len(hosts))
    tables.show(args.json, data, [*to_lines(hosts, weights), '', summary])
    return arguments.OK if hosts[-1][0] is not None else arguments.PROBLEM


def to_lines(
    hosts: list[tuple[str | None, str | None]], weights: dict[str, dict[str, float]]
) -> list[str]:
    """Return the choices, and the weights of the last one with our weigher, as lines."""
    rows = [
        (str(number), *(printable(host or '-') for host in pair))
        for number, pair in enumerate(hosts, 1)
    ]
    sums = sorted(((sum(added.values()), host) for host, added in weights.items()), reverse=True)
    best = [(printable(host), tables.number(total, 3)) for total, host in sums[:_HOSTS_SHOWN]]
    return [
        *tables.to_lines(tables.Table('guest with without'.split(), rows, (1, 2))),
        '',
        *tables.to_lines(tables.Table(('host', 'weight'), best, (0,))),
    ]
