# SPDX-License-Identifier: Apache-2.0
"""The report's arithmetic: from records to figures and verdicts. Pure."""

SCHEMA = 2
#: Latency of a local and a remote access on the two-socket Xeon X5675 of the KVM tuning
#: deck (eBay, 2013) [ns]; the lab has no latencies of its own.
LOCAL_NS, REMOTE_NS = 60, 100
#: Remote accesses unpinned : pinned on that machine (MEM_UNCORE_RETIRED.REMOTE_DRAM).
DECK_RATIO = 56
HOME_SHARE_WANTED = 0.99
LATENCY_WITHIN_RATIO = 0.02


def mean_latency_ns(local, remote):
    """Model the mean DRAM latency [ns]: 60 + 40 · remote share; None without accesses."""
    total = local + remote
    return LOCAL_NS + (REMOTE_NS - LOCAL_NS) * remote / total if total else None


def summarize(record, nodes):
    """Compute the figures of one arrangement from its record.

    :param record: {'title', 'guests': {name: {'bytes': {node: n}, 'cpus', 'mems'}}, 'windows':
        [{'seconds', 'guests': {name: {'local', 'remote', 'passes'}}}], and more, kept unchanged}
    :param nodes: how many nodes the machine has
    :returns: a dict in the form of report.json's ``runs``
    """
    guests = {}
    for name, state in sorted(record['guests'].items()):
        by_node = [state['bytes'].get(node, 0) for node in range(nodes)]
        home = by_node.index(max(by_node))
        accesses = {
            key: sum(window['guests'].get(name, {}).get(key, 0) for window in record['windows'])
            for key in ('local', 'remote', 'passes')
        }
        guests[name] = {
            'home': home,
            'home_share': max(by_node) / max(1, sum(by_node)),
            'bytes_per_node': by_node,
            'cpus': state['cpus'],
            'mems': state['mems'],
            **accesses,
        }
    homes = [guest['home'] for guest in guests.values()]
    local, remote, passes = (
        sum(guest[key] for guest in guests.values()) for key in ('local', 'remote', 'passes')
    )
    rest = {key: value for key, value in record.items() if key not in ('guests', 'windows')}
    return {
        **rest,
        'guests_per_node': [homes.count(node) for node in range(nodes)],
        'home_share_min': min((g['home_share'] for g in guests.values()), default=0.0),
        'local': local,
        'remote': remote,
        'passes': passes,
        'seconds': sum(window['seconds'] for window in record['windows']),
        'remote_share': remote / (local + remote) if local + remote else None,
        'remote_per_pass': remote / passes if passes else None,
        'mean_latency_ns': mean_latency_ns(local, remote),
        'windows': [_window(window) for window in record['windows']],
        'guests': guests,
    }


def _window(window):
    return {
        'seconds': window['seconds'],
        **{
            key: sum(guest[key] for guest in window['guests'].values())
            for key in ('local', 'remote', 'passes')
        },
    }


def ratio(runs, name, key='remote', against='floating'):
    """Divide a figure of one run by another's: how many times fewer; None if not both ran.

    A count of 0 is taken as 1, so that the ratio is a number that understates.
    """
    if against not in runs or name not in runs:
        return None
    above, below = runs[against][key], runs[name][key]
    if above is None or below is None:
        return None
    if key == 'remote_per_pass' and not below:
        below = 1 / runs[name]['passes']
    return above / (below or 1)


def even(guests_per_node):
    """Return whether no node has two guests more than another."""
    return max(guests_per_node) - min(guests_per_node) <= 1


def checks(runs):
    """Compare our runs with the requirements: [{'name', 'passed', 'value', 'required'}].

    Those that are ``required`` decide the exit code; the others are only reported.
    """
    results = []

    def check(name, passed, value, required=True):
        results.append(
            {'name': name, 'passed': bool(passed), 'value': value, 'required': required}
        )

    for name in ('placed', 'bound'):
        if name not in runs:
            continue
        run = runs[name]
        split = ':'.join(map(str, run['guests_per_node']))
        check(f'{name}: evenly spread over the nodes', even(run['guests_per_node']), split)
        share = run['home_share_min']
        check(
            f"{name}: at least 99 % of each guest's bytes on its node",
            share >= HOME_SHARE_WANTED,
            f'{share:.2%}',
            required=False,
        )
        latency = run['mean_latency_ns']
        check(
            f'{name}: modelled latency within 2 % of all-local',
            latency is not None and latency <= LOCAL_NS * (1 + LATENCY_WITHIN_RATIO),
            f'{latency:.2f} ns' if latency else 'nothing counted',
            required=False,
        )
        fewer = ratio(runs, name)
        if fewer is not None:
            check(
                f"{name}: remote accesses at least {DECK_RATIO} times fewer than floating's",
                fewer >= DECK_RATIO,
                f'{fewer:,.0f}',
            )
    return results


def ran(runs):
    """Return those of {arrangement: run} that have figures, without those that failed."""
    return {name: run for name, run in runs.items() if 'failed' not in run}


def report(runs, machine, phases):
    """Return the content of report.json.

    :param runs: {arrangement: summarized run, or {'title', 'failed': why it has no figures}}
    :param machine: facts about the host and the machine
    :param phases: {phase: seconds}
    """
    measured = ran(runs)
    return {
        'schema': SCHEMA,
        'runs': runs,
        'times_fewer': ratio(measured, 'placed'),
        'times_fewer_per_pass': ratio(measured, 'placed', 'remote_per_pass'),
        'ratios': {
            name: {
                'remote': ratio(measured, name),
                'remote_per_pass': ratio(measured, name, 'remote_per_pass'),
            }
            for name in measured
        },
        'deck_ratio': DECK_RATIO,
        'latency_model_ns': [LOCAL_NS, REMOTE_NS],
        'checks': checks(measured),
        'machine': machine,
        'phases_s': phases,
        'total_s': sum(phases.values()),
    }


def comparable_runs(former, settings):
    """Return the runs of a former report, to be joined with others; None if it cannot be.

    :param settings: what must be equal in both, a part of the report's ``machine``
    """
    comparable = former['schema'] == SCHEMA and settings.items() <= former['machine'].items()
    return former['runs'] if comparable else None


def missed(findings):
    """Return the report's failed checks that decide the exit code."""
    return [check for check in findings['checks'] if check['required'] and not check['passed']]
