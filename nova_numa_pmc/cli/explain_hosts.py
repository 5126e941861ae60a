# SPDX-License-Identifier: Apache-2.0
"""Explain the choice among hosts, from saved rows of Nova's compute_nodes table."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import sys
from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc.cli import exits, output
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.conf import scheduler as scheduler_conf
from nova_numa_pmc.exceptions import OptionsError
from nova_numa_pmc.host import nova_conf
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.scheduler import host_estimate, saved_hosts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from nova_numa_pmc.cli.flavor import Flavor
    from nova_numa_pmc.scheduler import nova_weighers

#: Number of hosts in the text; the JSON has all of them.
_HOSTS_SHOWN = 30
#: Printed if the weigher adds nothing, so that equal hosts are chosen in the order of their rows.
_MODE_TEXT = (
    '[numa_pmc] mode = %s: nothing is added, so other weighers choose among the hosts that pass'
)


def run(args: argparse.Namespace, requested: Flavor) -> int:
    """Replay the scheduler's decision, print it, and return the exit code.

    :param requested: the flavor of the guests to place
    :raises OptionsError: a file of ``--nova-conf`` cannot be read
    :raises RowsError: the file of rows cannot be used
    """
    hosts, saved_s = read(args.hosts)
    conf = options(args.nova_conf)
    flavor = saved_hosts.SavedFlavor(
        requested.vcpus, -(-requested.memory_bytes >> 20), requested.specs
    )
    host_by_name = {host.host: host for host in hosts}
    decisions = saved_hosts.rank(hosts, flavor, conf, saved_s)
    chosen = [chosen_host(decisions)]
    # The decisions of later rounds are not kept: there may be many hosts and many rounds.
    while chosen[-1] is not None and len(chosen) < args.count:
        host_by_name[chosen[-1]].consume(flavor)
        chosen.append(chosen_host(saved_hosts.rank(hosts, flavor, conf, saved_s)))
    passing_hosts = [decision.host for decision in decisions if decision.passes]
    nova_weights, why_none = weigh_with_nova(
        [host_by_name[name].row for name in passing_hosts], flavor, args.nova_conf, saved_s
    )
    if args.json:
        print(
            json.dumps(
                {
                    'flavor': flavor._asdict(),
                    'options': conf,
                    'saved_at': saved_s,
                    'chosen': chosen,
                    'hosts': [
                        to_data(decision, host_by_name[decision.host]) for decision in decisions
                    ],
                    'weighers': nova_weights and weights_to_data(nova_weights, passing_hosts),
                },
                indent=2,
                sort_keys=True,
            )
        )
    else:
        weigher_lines = (
            weights_to_lines(nova_weights, passing_hosts) if nova_weights else [why_none]
        )
        lines = to_lines(decisions, chosen, host_by_name, conf['mode'])
        print('\n'.join([*lines, '', *weigher_lines]))
    return exits.PROBLEM if chosen[-1] is None else exits.OK


def weigh_with_nova(
    rows: Sequence[Mapping[str, Any]],
    flavor: saved_hosts.SavedFlavor,
    files: Sequence[str],
    saved_s: float,
) -> tuple[nova_weighers.NovaWeights | None, str]:
    """Weigh the hosts with all weighers that nova.conf configures, if Nova can be imported.

    :param rows: the rows of the hosts that our filter passes
    :param files: nova.conf and others, as for :func:`nova_weighers.weigh`; empty: none
    :param saved_s: when the rows were saved [s since the epoch]
    :returns: (the weights, '') or (None, why the hosts cannot be weighed)
    """
    if not files:
        return None, "Nova's other weighers are left out: specify nova.conf with --nova-conf"
    if len(rows) < 2:
        return None, "Nova's other weighers are left out: Nova skips them if only one host is left"
    try:
        # Imported by name, as the command has to work without Nova.
        weighers = importlib.import_module('nova_numa_pmc.scheduler.nova_weighers')
        return weighers.weigh(rows, flavor, files, saved_s), ''
    except ImportError as error:
        return None, "Nova's other weighers are left out: %s: run with Nova's Python" % error
    except cfg.Error as error:
        return None, "Nova's other weighers are left out: %s" % error
    except Exception as error:
        # Nova's objects raise exceptions of many kinds if a row does not have the expected shape.
        return None, "Nova's other weighers are left out: %s: %s" % (type(error).__name__, error)


def weights_to_data(
    weights: nova_weighers.NovaWeights, passing_hosts: list[str]
) -> dict[str, Any]:
    """Return the weights by all of Nova's weighers as plain data."""
    return {
        'chosen': passing_hosts[_positions_by_weight(weights, passing_hosts)[0]],
        'hosts': {
            name: {
                'weight': weights.weight(position),
                'added_weights': {
                    weigher: added[position] for weigher, added in weights.added_weights.items()
                },
            }
            for position, name in enumerate(passing_hosts)
        },
        'failed': weights.failed,
    }


def weights_to_lines(weights: nova_weighers.NovaWeights, passing_hosts: list[str]) -> list[str]:
    """Return the weights as lines, with a column for each weigher that distinguishes hosts."""
    columns = [name for name, added in weights.added_weights.items() if len(set(added)) > 1]
    others = [name for name in weights.added_weights if name not in columns]
    order = _positions_by_weight(weights, passing_hosts)
    headings = ('host', 'weight', *(printable(name) for name in columns))
    rows = [
        (
            printable(passing_hosts[position]),
            tables.number(weights.weight(position), 3),
            *(tables.number(weights.added_weights[name][position], 3) for name in columns),
        )
        for position in order[:_HOSTS_SHOWN]
    ]
    lines = tables.to_lines(tables.text_table(headings, rows, (0,)))
    if len(order) > _HOSTS_SHOWN:
        lines.append('and %d more' % (len(order) - _HOSTS_SHOWN))
    if others:
        lines.append('the same for all hosts: ' + ', '.join(map(printable, others)))
    lines += ['left out: %s' % printable('%s: %s' % pair) for pair in weights.failed.items()]
    return [*lines, '', 'chosen by all weighers: ' + printable(passing_hosts[order[0]])]


def _positions_by_weight(
    weights: nova_weighers.NovaWeights, passing_hosts: list[str]
) -> list[int]:
    """Return the hosts' positions in ``passing_hosts``, the highest weight first."""
    return sorted(range(len(passing_hosts)), key=lambda position: -weights.weight(position))


def read(path: str) -> tuple[list[saved_hosts.SavedHost], float]:
    """Return (hosts, when they were saved) from a file of rows, as :func:`saved_hosts.read`.

    :raises RowsError: the file cannot be read or used
    """
    with name_file_in_errors(path):
        return saved_hosts.read(read_content(path))


@contextlib.contextmanager
def name_file_in_errors(path: str) -> Iterator[None]:
    """Put the file's path in front of the message of a :class:`RowsError` raised in the block."""
    try:
        yield
    except saved_hosts.RowsError as error:
        raise saved_hosts.RowsError('%s: %s' % (path, error)) from None


def read_content(path: str) -> str:
    """Return the content of a file of rows.

    :raises RowsError: it cannot be read, or is too large
    """
    try:
        with open(path, encoding='utf-8') as stream:
            text = stream.read(saved_hosts.SIZE_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise saved_hosts.RowsError(str(error)) from None
    if len(text) > saved_hosts.SIZE_MAX_BYTES:
        raise saved_hosts.RowsError('larger than %d bytes' % saved_hosts.SIZE_MAX_BYTES)
    return text


def options(paths: list[str]) -> dict[str, Any]:
    """Return the options of the group ``[numa_pmc]`` in nova.conf; without a file, the defaults.

    :raises OptionsError: a file cannot be read
    """
    return options_of_group(paths, scheduler_conf.GROUP.name, saved_hosts.defaults())


def options_of_group(paths: list[str], group: str, names: Iterable[str]) -> dict[str, Any]:
    """Return options of a group in nova.conf, by name; without a file, Nova's defaults.

    A value that cannot be used is printed to stderr.

    :param paths: nova.conf and others; later files override earlier ones
    :raises OptionsError: a file cannot be read
    """
    conf = nova_conf.NovaConf(paths)
    if conf.findings:
        raise OptionsError('; '.join(finding.message for finding in conf.findings))
    values = {name: conf.get(name, group) for name in names}
    problems = ['%s: its default is assumed' % finding.message for finding in conf.findings]
    for line in output.problem_lines(problems):
        print(line, file=sys.stderr)
    return values


def chosen_host(decisions: list[saved_hosts.HostDecision]) -> str | None:
    """Return the name of the host that a round chooses, or None if no host passes."""
    return decisions[0].host if decisions[0].passes else None


def to_data(decision: saved_hosts.HostDecision, host: saved_hosts.SavedHost) -> dict[str, Any]:
    """Return the decision on a host as plain data."""
    estimate = decision.estimate
    return {
        'host': decision.host,
        'passes': decision.passes,
        'why_refused': decision.why_refused,
        'pressure': decision.pressure,
        'loss': decision.loss,
        'penalty': decision.penalty if decision.passes else None,
        'added_weight': decision.added_weight,
        'text': host_estimate.describe(estimate),
        'outcome': estimate.outcome and estimate.outcome._asdict(),
        'arrived_vcpus': estimate.arrived_vcpus,
        'nodes': saved_hosts.node_metrics(host),
    }


def to_lines(
    first_decisions: list[saved_hosts.HostDecision],
    chosen: list[str | None],
    by_name: dict[str, saved_hosts.SavedHost],
    mode: str,
) -> list[str]:
    """Return the decision as lines: the hosts in order, their nodes, and the chosen hosts.

    :param first_decisions: the decisions of the first round
    :param chosen: the host of each round; the last one is None if no host passes any more
    :param mode: the option ``mode``
    """
    decisions = first_decisions[:_HOSTS_SHOWN]
    rows: list[tuple[str, ...]] = [
        (
            '%d.' % number,
            printable(decision.host),
            tables.number(decision.added_weight, 3),
            decision.why_refused or 'passes',
            host_estimate.describe(decision.estimate),
        )
        for number, decision in enumerate(decisions, 1)
    ]
    lines = tables.to_lines(tables.text_table('order host added filter outcome', rows, (1, 3, 4)))
    if len(first_decisions) > _HOSTS_SHOWN:
        lines.append('and %d more' % (len(first_decisions) - _HOSTS_SHOWN))
    rows = []
    for decision in decisions:
        for node in saved_hosts.node_metrics(by_name[decision.host]):
            rows.append(
                (
                    printable(decision.host),
                    str(node['node']),
                    *(
                        tables.number(node[name])
                        for name in ('cpu_ratio', 'bandwidth_ratio', 'link_ratio')
                    ),
                    tables.percent(node['promised_ratio']),
                    tables.number(node['vcpus'], 1),
                    tables.percent(node['remote_ratio']),
                )
            )
    return [
        *lines,
        '',
        *tables.to_lines(
            tables.text_table('host node cpu bw link promised% vcpus rem%', rows, (0,))
        ),
        '',
        *([] if mode == scheduler_conf.ON else [_MODE_TEXT % mode]),
        'chosen: ' + _chosen_text(chosen),
    ]


def _chosen_text(chosen: list[str | None]) -> str:
    """Return the names of the chosen hosts, with the number of guests if there are several."""
    are_several = len(chosen) > 1
    counts = collections.Counter(name for name in chosen if name is not None)
    chosen_texts = [
        printable(name) + (' %d' % count if are_several else '')
        for name, count in sorted(counts.items())
    ]
    if chosen[-1] is None:
        chosen_texts.append(
            'no host passes' + (' for guest number %d' % len(chosen) if are_several else '')
        )
    return ', '.join(chosen_texts)
