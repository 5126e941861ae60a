# SPDX-License-Identifier: Apache-2.0
"""Time the weigher and Nova's MetricsWeigher, and the filter and Nova's NUMATopologyFilter.

On the same hosts in one run, for 100, 1,000 and 10,000 of them: HostStates are made from their
JSON as the scheduler does, with 50 instances each, and made again for each round, so that nothing
kept from earlier rounds counts. Both sides take turns in each round; the figures are medians over
the rounds, or minima where other load interferes.

Decoding counts on both sides: ours is within ``weigh_objects`` and the filter; Nova's, of JSON to
a MonitorMetricList, is reported separately: for both monitors' metrics (``from_json``), as both
weighers read them here, and for our monitor's or virt_driver's alone. The cost of a request with
only our package is ``added``: our metrics decoded, our filter, then our weigher; with
MetricsWeigher alone, it is ``metrics_added``. MetricsWeigher reads one metric. The filter, of
which nothing is asked here, runs before the weigher (``weigher_after_filter``);
``weigher_new_guests`` is the weigher if every host got two guests since it was measured.

The last line of output is one JSON object. Usage: bench_weigher.py [ROUNDS]
"""

import gc
import json
import statistics
import sys
import time
import warnings

warnings.filterwarnings('ignore')

import nova.conf  # noqa: E402
import nova.version  # noqa: E402
from nova import objects  # noqa: E402
from nova.scheduler import weights  # noqa: E402
from nova.scheduler.filters import numa_topology_filter  # noqa: E402
from nova.scheduler.weights import metrics as metrics_weigher  # noqa: E402

from nova_numa_pmc.scheduler import filter as pressure_filter, weigher  # noqa: E402
from tests.bench import nova_hosts  # noqa: E402

SIZES = (100, 1000, 10000)
#: What the package may add to a request, relative to what MetricsWeigher adds.
ADDED_RATIO_MAX = 2.0
#: Bounds that a regression would exceed. The weigher alone takes 1.9 to 2.2 times as long as
#: MetricsWeigher. Some 40 % of its time is waiting for memory, which depends on what else the
#: machine does.
RATIO_MAX, FILTER_RATIO_MAX = 2.5, 0.1


def timed_us(work, hosts):
    """Return the time that ``work()`` takes per host [µs]."""
    gc.collect()
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / 1000 / len(hosts)


def round_of(rows, spec, number, contestants):
    """Measure each side on fresh HostStates, in alternating order.

    :param contestants: {name: function of (host states, spec)}
    """
    names = list(contestants)
    times = {}
    for name in names[number % len(names) :] + names[: number % len(names)]:
        hosts = nova_hosts.host_states(rows)
        times[name] = timed_us(
            lambda name=name, hosts=hosts: contestants[name](hosts, spec), hosts
        )
    return times


def make_contestants():
    """Make the four contestants, and the weigher with what it may find or has to add."""
    ours, theirs = weigher.NUMAPressureWeigher(), metrics_weigher.MetricsWeigher()
    our_filter = pressure_filter.NUMAPressureFilter()
    their_filter = numa_topology_filter.NUMATopologyFilter()

    def weigh(one):
        return lambda hosts, spec: one.weigh_objects(
            [weights.WeighedHost(host, 0.0) for host in hosts], spec
        )

    def both(hosts, spec):
        list(our_filter.filter_all(hosts, spec))
        return timed_us(lambda: weigh(ours)(hosts, spec), hosts)

    def new_guests(hosts, spec):
        for host in hosts:
            host.vcpus_used += 2 * spec.vcpus
        return timed_us(lambda: weigh(ours)(hosts, spec), hosts)

    return {
        'weigher': weigh(ours),
        'metrics_weigher': weigh(theirs),
        'filter': lambda hosts, spec: list(our_filter.filter_all(hosts, spec)),
        'numa_topology_filter': lambda hosts, spec: list(their_filter.filter_all(hosts, spec)),
    }, {'weigher_after_filter': both, 'weigher_new_guests': new_guests}


def measure(count, rounds):
    """Return the medians for this number of hosts [µs per host]."""
    rows, spec = nova_hosts.compute_nodes(count), nova_hosts.request_spec()
    contestants, besides = make_contestants()
    times = [round_of(rows, spec, number, contestants) for number in range(rounds)]
    medians_us = {name: statistics.median(one[name] for one in times) for name in contestants}
    ratios = [one['weigher'] / one['metrics_weigher'] for one in times]
    medians_us['ratio_to_metrics_weigher'] = statistics.median(ratios)
    medians_us['filter_ratio'] = statistics.median(
        one['filter'] / one['numa_topology_filter'] for one in times
    )
    medians_us.update(
        (name, work(nova_hosts.host_states(rows), spec)) for name, work in besides.items()
    )
    columns = {'from_json': [row.metrics for row in rows]}
    columns['from_json_ours'] = [_only('numa.', column) for column in columns['from_json']]
    columns['from_json_cpu'] = [_only('cpu.', column) for column in columns['from_json']]
    for name, listed in columns.items():
        medians_us[name] = timed_us(lambda listed=listed: _decode(listed), rows)
    medians_us['added'] = (
        medians_us['from_json_ours'] + medians_us['filter'] + medians_us['weigher_after_filter']
    )
    medians_us['metrics_added'] = medians_us['from_json_cpu'] + medians_us['metrics_weigher']
    medians_us['added_ratio'] = medians_us['added'] / medians_us['metrics_added']
    return medians_us


def _only(prefix, column):
    """Return a column's JSON with only the metrics of one monitor."""
    return json.dumps(
        [metric for metric in json.loads(column) if metric['name'].startswith(prefix)]
    )


def _decode(columns):
    """Do what the scheduler does for each host of a request."""
    for column in columns:
        objects.MonitorMetricList.from_json(column)


def main(rounds=9):
    """Run the benchmark; return 1 if a target is missed.

    :param rounds: with 500 hosts; of fewer hosts more, as their rounds are short and noisy
    """
    nova.conf.CONF([], project='nova', default_config_files=[])
    nova.conf.CONF.set_override('weight_setting', ['cpu.percent=-1.0'], group='metrics')
    figures = {
        'compared_with': f'MetricsWeigher, NUMATopologyFilter of Nova '
        f'{nova.version.version_string()}'
    }
    print('µs per host, medians; 50 instances each, two nodes, decoding included')
    columns = (
        'weigher metrics_weigher ratio_to_metrics_weigher weigher_after_filter '
        'weigher_new_guests filter numa_topology_filter filter_ratio '
        'from_json from_json_ours from_json_cpu added metrics_added added_ratio'
    ).split()
    print('hosts'.rjust(8) + ''.join(name.rjust(len(name) + 2) for name in columns))
    missed = False
    for count in SIZES:
        measured = measure(count, max(3, int(rounds) * 500 // count))
        print(
            f'{count:8}' + ''.join(f'{measured[name]:{len(name) + 2}.3f}' for name in columns),
            flush=True,
        )
        figures[str(count)] = {name: round(value, 4) for name, value in measured.items()}
        missed |= (
            measured['ratio_to_metrics_weigher'] > RATIO_MAX
            or measured['filter_ratio'] > FILTER_RATIO_MAX
            or measured['added_ratio'] > ADDED_RATIO_MAX
        )
    for name in ('ratio_to_metrics_weigher', 'filter_ratio', 'added_ratio'):
        figures[name] = max(figures[str(count)][name] for count in SIZES)
    figures.update(ratio_max=RATIO_MAX, filter_ratio_max=FILTER_RATIO_MAX)
    figures['added_ratio_max'] = ADDED_RATIO_MAX
    print(json.dumps(figures))
    return int(missed)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
