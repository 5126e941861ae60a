# SPDX-License-Identifier: Apache-2.0
"""The report's arithmetic: from records to figures and verdicts. Pure."""

SCHEMA = 3
#: Remote accesses unpinned : pinned, of the KVM tuning deck (eBay, 2013;
#: MEM_UNCORE_RETIRED.REMOTE_DRAM of a two-socket Xeon X5675).
DECK_RATIO = 56
HOME_SHARE_WANTED = 0.99
OURS = ('placed', 'bound')


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
    return {
        **{key: value for key, value in record.items() if key not in ('guests', 'windows')},
        'guests_per_node': [homes.count(node) for node in range(nodes)],
        'home_share_min': min((g['home_share'] for g in guests.values()), default=0.0),
        'local': local,
        'remote': remote,
        'passes': passes,
        'seconds': sum(window['seconds'] for window in record['windows']),
        'remote_share': remote / (local + remote) if local + remote else None,
        'remote_per_pass': remote / passes if passes else None,
        'remote_by_window': [
            sum(guest['remote'] for guest in window['guests'].values())
            for window in record['windows']
        ],
        'guests': guests,
    }


def ratio(runs, name, key='remote'):
    """Divide a figure of ``floating`` by a run's: how many times fewer; None if not both ran.

    A count of 0 is taken as 1, so that the ratio is a number that understates.
    """
    if 'floating' not in runs or name not in runs:
        return None
    above, below = runs['floating'][key], runs[name][key]
    if above is None or below is None:
        return None
    if key == 'remote_per_pass' and not below:
        below = 1 / runs[name]['passes']
    return above / (below or 1)


def checks(runs):
    """Compare our runs with the requirements: [{'name', 'passed', 'value', 'required'}].

    Those that are ``required`` decide the exit code; the others are only reported.
    """
    results = []

    def check(name, passed, value, required=True):
        results.append({'name': name, 'passed': passed, 'value': value, 'required': required})

    for name in OURS:
        if name not in runs:
            continue
        spread, share = runs[name]['guests_per_node'], runs[name]['home_share_min']
        check(
            f'{name}: evenly spread over the nodes',
            max(spread) - min(spread) <= 1,
            ':'.join(map(str, spread)),
        )
        check(
            f"{name}: at least 99 % of each guest's bytes on its node",
            share >= HOME_SHARE_WANTED,
            f'{share:.2%}',
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


def report(runs, settings, phases):
    """Return the content of report.json.

    :param runs: {arrangement: summarized run, or {'title', 'failed': why it has no figures}}
    :param settings: what the runs have in common
    :param phases: {phase: seconds}
    """
    measured = ran(runs)
    return {
        'schema': SCHEMA,
        'runs': runs,
        'times_fewer': ratio(measured, 'placed'),
        'times_fewer_per_pass': ratio(measured, 'placed', 'remote_per_pass'),
        'ratios': {
            name: {key: ratio(measured, name, key) for key in ('remote', 'remote_per_pass')}
            for name in measured
        },
        'deck_ratio': DECK_RATIO,
        'checks': checks(measured),
        'settings': settings,
        'phases_s': phases,
    }


def missed(findings):
    """Return the report's failed checks that decide the exit code."""
    return [check for check in findings['checks'] if check['required'] and not check['passed']]
