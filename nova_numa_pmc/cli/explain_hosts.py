# SPDX-License-Identifier: Apache-2.0
"""The part of ``explain`` that chooses among hosts, from saved rows."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc.cli import exits
from nova_numa_pmc.cli.render import tables
from nova_numa_pmc.host import nova_conf
from nova_numa_pmc.scheduler import host_estimate, saved_hosts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from nova_numa_pmc import model
    from nova_numa_pmc.scheduler import nova_weighers

#: The text lists at most this many hosts; the JSON has all.
_HOSTS_SHOWN = 30


def run(args: argparse.Namespace, guest: model.Guest) -> int:
    """Replay the decision, print it, and return the exit code.

    :param guest: with the requested size and extra specs
    :raises RowsError: the file cannot be used
    """
    hosts, saved_s = read(args.hosts)
    conf = options(args.nova_conf)
    flavor = saved_hosts.SavedFlavor(guest.vcpus, -(-guest.memory_bytes >> 20), specs(guest))
    by_name = {host.host: host for host in hosts}
    rounds: list[list[saved_hosts.HostDecision]] = []
    for _ in range(args.count):
        rounds.append(saved_hosts.rank(hosts, flavor, conf, saved_s))
        best = rounds[-1][0]
        if not best.passes:
            break
        by_name[best.host].consume(flavor)
    passing = [decision.host for decision in rounds[0] if decision.passes]
    weighed, why = by_nova(args, passing, flavor, saved_s)
    if args.json:
        print(
            json.dumps(
                {
                    'flavor': flavor._asdict(),
                    'options': conf,
                    'saved_at': saved_s,
                    'chosen': [chosen_host(decisions) for decisions in rounds],
                    'hosts': [to_data(decision, by_name[decision.host]) for decision in rounds[0]],
                    'weighers': weighed and weights_to_data(weighed, passing),
                },
                indent=2,
                sort_keys=True,
            )
        )
    else:
        print(render(rounds, by_name))
        print('\n' + (render_weighers(weighed, passing) if weighed else why))
    return exits.OK if rounds[-1][0].passes else exits.PROBLEM


def by_nova(
    args: argparse.Namespace, passing: list[str], flavor: saved_hosts.SavedFlavor, saved_s: float
) -> tuple[nova_weighers.NovaWeights | None, str]:
    """Weigh the hosts with all weighers that nova.conf names, if Nova can be imported.

    :param passing: hosts that our filter passes
    :returns: (the weights, ''), or (None, why there are none)
    """
    files = nova_conf.NovaConf(args.nova_conf).files
    if not files:
        return None, "Nova's other weighers are left out: name nova.conf with --nova-conf"
    if len(passing) < 2:
        return None, "Nova's other weighers are left out: Nova skips them when one host is left"
    with errors_name_file(args.hosts):
        row_by_host = {
            saved_hosts.parse_host(row).host: row
            for row in saved_hosts.parse_rows(read_content(args.hosts))
        }
    try:
        # Imported by name: the command does not need Nova, and nothing else in it may import Nova.
        nova = importlib.import_module('nova_numa_pmc.scheduler.nova_weighers')
        return nova.weigh([row_by_host[name] for name in passing], flavor, files, saved_s), ''
    except ImportError as error:
        return None, "Nova's other weighers are left out: %s: run with Nova's Python" % error
    except cfg.Error as error:
        return None, "Nova's other weighers are left out: %s" % error
    except Exception as error:
        # Of Nova's objects, which take no row of another shape.
        return None, "Nova's other weighers are left out: %s: %s" % (type(error).__name__, error)


def weights_to_data(weighed: nova_weighers.NovaWeights, passing: list[str]) -> dict[str, Any]:
    """Return Nova's weights as plain data."""
    return {
        'chosen': passing[_best(weighed, passing)[0]],
        'hosts': {
            name: {'weight': weighed.weight(position)}
            | {'shares': {weigher: listed[position] for weigher, listed in weighed.shares.items()}}
            for position, name in enumerate(passing)
        },
        'failed': weighed.failed,
    }


def render_weighers(weighed: nova_weighers.NovaWeights, passing: list[str]) -> str:
    """Return Nova's weights as text, with a column for each weigher that distinguishes hosts."""
    differing = [name for name, listed in weighed.shares.items() if len(set(listed)) > 1]
    equal = [name for name in weighed.shares if name not in differing]
    order = _best(weighed, passing)
    headings = ' '.join(['host', 'weight', *(tables.printable(name) for name in differing)])
    rows = [
        (
            tables.printable(passing[position]),
            tables.number(weighed.weight(position), 3),
            *(tables.number(weighed.shares[name][position], 3) for name in differing),
        )
        for position in order[:_HOSTS_SHOWN]
    ]
    lines = tables.text(tables.of_texts(headings, rows, (0,)))
    if len(order) > _HOSTS_SHOWN:
        lines.append('and %d more' % (len(order) - _HOSTS_SHOWN))
    if equal:
        lines.append('the same for all hosts: ' + ', '.join(map(tables.printable, equal)))
    lines += [
        'left out: %s' % tables.printable('%s: %s' % pair) for pair in weighed.failed.items()
    ]
    lines += ['', 'chosen by all weighers: ' + tables.printable(passing[order[0]])]
    return '\n'.join(lines)


def _best(weighed: nova_weighers.NovaWeights, passing: list[str]) -> list[int]:
    """Return the positions of the hosts, the best first."""
    return sorted(range(len(passing)), key=lambda position: -weighed.weight(position))


def read(path: str) -> tuple[list[saved_hosts.SavedHost], float]:
    """Read a file of rows; see :func:`saved_hosts.read`."""
    with errors_name_file(path):
        return saved_hosts.read(read_content(path))


@contextlib.contextmanager
def errors_name_file(path: str) -> Iterator[None]:
    """Add the file's path to errors raised in the block."""
    try:
        yield
    except saved_hosts.RowsError as error:
        raise saved_hosts.RowsError('%s: %s' % (path, error)) from None


def read_content(path: str) -> str:
    """Return the content of a file of rows.

    :raises RowsError: it cannot be read, or is too long
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
    """Return the group ``[numa_pmc]`` of nova.conf, or its defaults without a file."""
    conf = nova_conf.NovaConf(paths)
    return {name: conf.get(name, 'numa_pmc') for name in saved_hosts.defaults()}


def specs(guest: model.Guest) -> dict[str, str]:
    """Return the guest's extra specs that the scheduler reads."""
    pinned = dict(text.partition('=')[::2] for text in guest.placed_by if '=' in text)
    return {**dict(guest.extra_specs), **pinned}


def chosen_host(decisions: list[saved_hosts.HostDecision]) -> str | None:
    """Return the host that a round chooses; None: none passes."""
    return decisions[0].host if decisions[0].passes else None


def to_data(decision: saved_hosts.HostDecision, host: saved_hosts.SavedHost) -> dict[str, Any]:
    """Return a host's decision as plain data."""
    estimate = decision.estimate
    return {
        'host': decision.host,
        'passes': decision.passes,
        'why': decision.why,
        'pressure': decision.pressure,
        'loss': decision.loss,
        'penalty': decision.penalty if decision.passes else None,
        'share': decision.share,
        'told': host_estimate.describe(estimate),
        'outcome': estimate.outcome and estimate.outcome._asdict(),
        'charged_vcpus': estimate.charged_vcpus,
        'nodes': saved_hosts.node_metrics(host),
    }


def render(
    rounds: list[list[saved_hosts.HostDecision]], by_name: dict[str, saved_hosts.SavedHost]
) -> str:
    """Return the decision as text: hosts in order, then their nodes."""
    decisions = rounds[0][:_HOSTS_SHOWN]
    rows: list[tuple[str, ...]] = [
        (
            '%d.' % number,
            tables.printable(decision.host),
            tables.number(decision.share, 3),
            decision.why or 'passes',
            host_estimate.describe(decision.estimate),
        )
        for number, decision in enumerate(decisions, 1)
    ]
    lines = tables.text(tables.of_texts('order host share filter outcome', rows, (1, 3, 4)))
    if len(rounds[0]) > _HOSTS_SHOWN:
        lines.append('and %d more' % (len(rounds[0]) - _HOSTS_SHOWN))
    rows = []
    for decision in decisions:
        for node in saved_hosts.node_metrics(by_name[decision.host]):
            rows.append(
                (
                    tables.printable(decision.host),
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
    lines += [
        '',
        *tables.text(tables.of_texts('host node cpu bw link promised% vcpus rem%', rows, (0,))),
    ]
    lines += ['', 'chosen: ' + _chosen_text(rounds)]
    return '\n'.join(lines)


def _chosen_text(rounds: list[list[saved_hosts.HostDecision]]) -> str:
    names = [chosen_host(decisions) for decisions in rounds]
    counts = {name: names.count(name) for name in names if name}
    chosen_texts = [
        tables.printable(name) + (' %d' % count if len(rounds) > 1 else '')
        for name, count in sorted(counts.items())
    ]
    if names[-1] is None:
        chosen_texts.append(
            'no host passes' + (' for guest number %d' % len(rounds) if len(rounds) > 1 else '')
        )
    return ', '.join(chosen_texts)
