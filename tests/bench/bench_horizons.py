# SPDX-License-Identifier: Apache-2.0
"""Compare two measures of the load of equal hosts with bursts, as reasons to choose one.

On each host, eight guests of 4 vCPUs want all of them an eighth of the time and nothing in
between: a quarter of its 16 cores is wanted. After the given hours, the benchmark compares a
snapshot of five seconds once a minute with the longer horizon: in how many decisions do two hosts
differ by a step of pressure, and what do the emptiest and the fullest of all read? Then the load
of some hosts triples: what is the mean reading of the longer horizon after so many minutes?
The last line of output is one JSON object.
Usage: bench_horizons.py [HOSTS [HOURS]]
"""

import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))

from nova_numa_pmc import model  # noqa: E402
from tests.sim import bursts  # noqa: E402

#: Mean length of a burst [s].
BURSTS_S = (20.0, 60.0, 300.0)
STEP = model.PlacementOptions().pressure_step
#: The tripled load is observed on this many hosts, after this many minutes.
RISING_HOSTS, RISING_MINUTES = 50, (5, 15, 30, 60)


def figures(ratios):
    """Return what a scheduler would see of this number of hosts."""
    return {
        'differ': round(bursts.differing_fraction(ratios, STEP), 3),
        'emptiest': round(min(ratios), 3),
        'mean': round(statistics.mean(ratios), 3),
        'fullest': round(max(ratios), 3),
    }


def equal_hosts(count, hours, burst_s):
    """Return ({evidence: figures}, some of the hosts)."""
    hosts, ratios = [], {'last_5_s': [], 'longer': []}
    for at in range(count):
        host = bursts.BurstingHost((at, burst_s), burst_s)
        host.run(60 * hours)
        for name, readings in ratios.items():
            readings.append(getattr(host, name))
        if at < RISING_HOSTS:
            hosts.append(host)
    return {name: figures(readings) for name, readings in ratios.items()}, hosts


def rising(hosts):
    """Triple the load; return {minutes: mean ratio by the longer horizon}."""
    longer, before = {}, 0
    for host in hosts:
        for guest in host.guests:
            guest.begin(3 * bursts.BUSY)
    for minutes in RISING_MINUTES:
        for host in hosts:
            host.run(minutes - before)
        before = minutes
        longer[minutes] = round(statistics.mean(host.longer for host in hosts), 3)
    return longer


def main(count=1000, hours=24):
    """Run the benchmark; return 1 if the longer horizon does not keep its promise."""
    count, hours, by_burst = int(count), int(hours), {}
    print('%d equal hosts of which %.2f is wanted, after %d h' % (count, bursts.TRUE_RATIO, hours))
    for burst_s in BURSTS_S:
        figures_, hosts = equal_hosts(count, hours, burst_s)
        for name, figure in figures_.items():
            print(
                'bursts of %3.0f s, by the %-8s: two differ by a step in %5.1f %%, the emptiest '
                'reads %.2f, the fullest %.2f'
                % (burst_s, name, 100 * figure['differ'], figure['emptiest'], figure['fullest']),
                flush=True,
            )
        by_burst['%.0f' % burst_s] = dict(figures_, tripled=rising(hosts))
        print(
            '  tripled (%.2f): the longer horizon reads %s'
            % (
                3 * bursts.TRUE_RATIO,
                ', '.join(
                    '%.2f after %d min' % (ratio, minutes)
                    for minutes, ratio in by_burst['%.0f' % burst_s]['tripled'].items()
                ),
            )
        )
    print(
        json.dumps(
            {
                'hosts': count,
                'hours': hours,
                'true': bursts.TRUE_RATIO,
                'step': STEP,
                'bursts_s': by_burst,
            }
        )
    )
    return int(
        any(
            figures_['longer']['differ'] >= figures_['last_5_s']['differ']
            for figures_ in by_burst.values()
        )
    )


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
