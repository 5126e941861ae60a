# SPDX-License-Identifier: Apache-2.0
"""Compute and format the figures of many boots at once; without I/O."""

import bisect
import collections
import datetime
import json
import math
import random
import re
import statistics

from nova_numa_pmc.compute import metrics_decoder

#: Rounds of blind uniform choice, for comparison.
BLIND_ROUNDS = 2000
#: The figures that a round has for each guest.
GUEST_FIGURES = 'claimed_s', 'counted_s', 'under_way'

_UUID = r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'
_SELECTED = re.compile(
    r'(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) .*'
    rf'\[instance: (?P<uuid>{_UUID})\] Selected host: \((?P<host>[^,]+),'
)
_ATTEMPT = re.compile(rf'Attempting to claim resources in the placement API for instance {_UUID}')


def quantile(values, share):
    """Return the least value that at least this fraction of values does not exceed, or None."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def spread(values):
    """Return median, 90th percentile and maximum of values, or None if there are none."""
    return {
        'median': statistics.median(values) if values else None,
        'p90': quantile(values, 0.9),
        'most': max(values, default=None),
    }


def blind_choice(boots, hosts, rounds=BLIND_ROUNDS, seed=0):
    """Return the largest number of guests on a host with blind choice: mean, median, p90."""
    rng, most = random.Random(seed), []
    for _ in range(rounds):
        chosen = collections.Counter(rng.choices(range(hosts), k=boots))
        most.append(max(chosen.values()))
    return {'mean': round(statistics.mean(most), 2), **spread(most)}


def decisions(text):
    """Return the decisions in nova-scheduler's log.

    :param text: the log, with the scheduler at debug
    :returns: ({server: (time [s since the epoch], host)}, how many chosen hosts had no room left
        in Placement, so that the next best was tried)
    """
    selections = list(_SELECTED.finditer(text))
    selected = {
        selection['uuid']: (
            datetime.datetime.fromisoformat(selection['at']).timestamp(),
            selection['host'],
        )
        for selection in selections
    }
    return selected, max(0, len(_ATTEMPT.findall(text)) - len(selections))


def counted_at(claims, polls, vcpus):
    """Return {server: when its host's vCPUs had grown by it}, without those never seen.

    :param claims: {server: (when it had its host, host)}
    :param polls: [(when, {host: vCPUs used})] in their order
    :param vcpus: of each server
    """
    by_host = collections.defaultdict(list)
    for server, (at_s, host) in claims.items():
        by_host[host].append((at_s, server))
    counted_s = {}
    for host, ours in by_host.items():
        # Guests are alike, so the first one claimed is the first one counted.
        for number, (_, server) in enumerate(sorted(ours), 1):
            times_s = (at_s for at_s, used in polls if used.get(host, 0) >= number * vcpus)
            at_s = next(times_s, None)
            if at_s is not None:
                counted_s[server] = at_s
    return counted_s


def under_way(decided, counted):
    """Return for each decision how many others were made but not counted yet.

    :param decided, counted: {server: time}; a server that was never counted is always under way
    """
    begun = sorted(decided.values())
    ended = sorted(counted.get(server, math.inf) for server in decided)
    return [bisect.bisect_left(begun, at) - bisect.bisect_right(ended, at) for at in begun]


def hosts_not_ready(hosts, with_package):
    """Return {host: reason} for hosts that are not as they were before the first guest.

    :param hosts: rows of compute_nodes: host, vcpus_used, metrics
    :param with_package: whether what they report also counts
    """
    reasons = {}
    for row in hosts:
        reported = metrics_decoder.decode(json.loads(row['metrics'] or '[]'))
        if row['vcpus_used']:
            reasons[row['host']] = f'{row["vcpus_used"]} vCPUs used'
        elif with_package and reported is None:
            reasons[row['host']] = 'no NUMA metrics'
        elif with_package and (
            reported.vcpus_used or any(node.guests for node in reported.view.nodes)
        ):
            reasons[row['host']] = 'its metrics still include guests'
    return reasons


def summary(rounds):
    """Return a summary of a variant's rounds."""
    most = [round_['most'] for round_ in rounds]
    return {
        'rounds': len(rounds),
        'most': spread(most),
        'each': most,
        **{
            name: sum(round_[name] for round_ in rounds)
            for name in ('refused', 'failed', 'not_accepted', 'retries', 'reschedules', 'unknown')
        },
        **{
            name: spread([value for round_ in rounds for value in round_[name]])
            for name in GUEST_FIGURES
        },
        **{
            name: spread([round_[name] for round_ in rounds if round_[name] is not None])
            for name in ('requests_s', 'decisions_s')
        },
    }


def without_guests(report):
    """Return a report without its figures for each guest."""
    return {
        **report,
        'variants': [
            {
                **variant,
                'rounds': [
                    {name: value for name, value in round_.items() if name not in GUEST_FIGURES}
                    for round_ in variant['rounds']
                ],
            }
            for variant in report['variants']
        ],
    }


def table(report):
    """Return a report as text."""
    plan, by_chance = report['plan'], report['blind']
    headings = ['schedulers', 'subset', 'package', 'most on a host', 'each round', 'refused']
    headings += ['retries', 'decided → counted [s]', 'under way', 'requests [s]', 'decisions [s]']
    rows, delays = [headings], ('counted_s', 'under_way')
    for variant in report['variants']:
        totals = variant['summary']
        rows.append(
            [
                str(variant['schedulers']),
                str(variant['subset']),
                'with' if variant['package'] else 'without',
                f'{_number(totals["most"]["median"])} (p90 {_number(totals["most"]["p90"])})',
                ' '.join(map(str, totals['each'])),
                str(totals['refused'] + totals['failed'] + totals['not_accepted']),
                str(totals['retries'] + totals['reschedules']),
                *(' / '.join(map(_number, totals[name].values())) for name in delays),
                *(_number(totals[name]['median']) for name in ('requests_s', 'decisions_s')),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ['  '.join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return '\n'.join(
        [
            f'{plan["boots"]} boots within {plan["seconds"]:g} s on {plan["computes"]} equal '
            f'hosts, builds of {report["build_s"][0]:g} to {report["build_s"][1]:g} s'
            + (', schedulers held until all were accepted' if plan['hold'] else ''),
            *lines,
            f'blind uniform choice: most on a host {by_chance["mean"]} on average, median '
            f'{_number(by_chance["median"])}, p90 {_number(by_chance["p90"])}',
            'where three figures are: median, 90th percentile, most of all guests; the last two '
            'columns: of a round',
        ]
    )


def _number(value):
    return '-' if value is None else f'{value:.1f}'.removesuffix('.0')


def delays_s(before, after):
    """Return how much later servers are there [s], for those in both."""
    return [round(after[server] - at, 2) for server, at in before.items() if server in after]


def variant_label(count, subset, with_package):
    return (
        f'{count} schedulers, host_subset_size {subset}, {"with" if with_package else "without"} '
        'the package'
    )


def summary_lines(round_):
    """Return a round in a line, followed by a line for each error."""
    delays, waits = spread(round_['counted_s']), spread(round_['under_way'])
    return (
        f'most {round_["most"]}, {round_["placed"]} placed, {round_["refused"]} refused, '
        f'{round_["failed"]} failed, {round_["not_accepted"]} not accepted, {round_["retries"]} '
        f'retries; requests took {round_["requests_s"]} s, decisions {round_["decisions_s"]} s; '
        f'counted after {_number(delays["median"])} to {_number(delays["most"])} s, under way '
        f'{_number(waits["median"])} to {_number(waits["most"])}; weighed {round_["weighed"]}, '
        f'unknown {round_["unknown"]}; {round_["seconds"]} s in all'
        + ''.join(f'\n  {text}' for text in (*round_['errors'], *round_['faults']))
    )


def passed(report):
    """Return whether every variant had a round and every server ran."""
    summaries = [variant['summary'] for variant in report['variants']]
    lost = sum(
        totals['refused'] + totals['failed'] + totals['not_accepted'] for totals in summaries
    )
    plan = report['plan']
    variants = len(plan['schedulers']) * len(plan['subsets']) * (2 if plan['without'] else 1)
    return len(summaries) == variants and not lost
