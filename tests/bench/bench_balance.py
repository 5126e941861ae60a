# SPDX-License-Identifier: Apache-2.0
"""Divide six busy guests five to one, and measure what evens them out: numad, kernel, agent.

In an emulated two-node machine, the memory of five guests is brought to node 0 and that of one to
node 1, while the kernel places their CPUs. One of these follows, each on a freshly
thawed machine: nothing, the kernel's automatic NUMA balancing, numad as a daemon, our agent.
Recorded over the same time are guests per node (by most of their bytes), the remote share of DRAM
accesses (perf), the guests' passes, the CPU time that each way spent and the bytes that the kernel
migrated. A plot is written to build/balance. How soon each reacts says nothing about hardware:
emulation is slow, and so are its ticks. The guests want 3.6 CPUs: nothing else may run on the host
during that time. The last line of output is one JSON object.

examples:
  make bench-balance                                 about half an hour
  make bench-balance ARGS='--minutes 2 --only numad,agent'
"""

import json
import os
import pathlib
import sys
import time

LAB = pathlib.Path(__file__).resolve().parents[1] / 'lab'
sys.path.insert(0, str(LAB))

from conftest import Lab  # noqa: E402
from machine.agent import Agent  # noqa: E402
from machine.guests import guests_per_node, home_share  # noqa: E402
from machine.shape import Shape  # noqa: E402

from tests.bench import command  # noqa: E402
from tests.lab.demo import scenario  # noqa: E402
from tests.lab.demo.show import count  # noqa: E402

SHAPE = Shape(memory_mib=(3072, 3072))
#: Over 300 MB and over half a CPU busy: what numad considers (numad(8)).
GUEST = {'memory_mib': 320, 'cmdline': 'duty=60'}
HOMES = {f'g{i}': int(i == 5) for i in range(6)}
WINDOW_S, PAGE_BYTES = 8, 4096
TITLES = {'nobody': 'nothing', 'kernel': 'NUMA balancing', 'numad': 'numad', 'agent': 'our agent'}
#: User and system time of a process and of its guests' QEMUs [ticks of 1/100 s].
CPU_TIME = (
    'pid=$(pgrep -o -x numad || systemctl show -P MainPID nova-numa-agent); '
    "awk '{print $14 + $15}' /proc/$pid/stat 2>/dev/null || echo 0"
)
SYSTEM_TIME = (
    "for pid in $(pgrep -x qemu-system-x86); do awk '{print $15}' /proc/$pid/stat; "
    "done | awk '{all += $1} END {print all + 0}'"
)
MIGRATED = "awk '/^pgmigrate_success/ {print $2}' /proc/vmstat"


def print_progress(line):
    """Report progress."""
    print(f'bench-balance: {line}', file=sys.stderr, flush=True)


def start_balancer(way, host):
    """Start what is to balance; return our Agent if it is that."""
    host.run(f'sysctl -q kernel.numa_balancing={int(way == "kernel")}')
    if way == 'numad':
        host.run('rm -f /var/run/numad.pid; numad')
    elif way == 'agent':
        host.run('mkdir -p /etc/nova-numa-pmc')
        agent = Agent(host)
        agent.start(rebalance='on')
        return agent
    return None


def read_counters(host):
    """Return (CPU ticks of the balancing, system ticks of the guests, pages migrated)."""
    done = host.run(f'{CPU_TIME}; {SYSTEM_TIME}; {MIGRATED}')
    return [int(word) for word in done.stdout.split()]


def observe(way, minutes, name):
    """Return the observations of one way."""
    with scenario.machine_up(name, SHAPE) as machine:
        host = Lab(machine)
        host.guests.start([{'name': guest, 'paused': True, **GUEST} for guest in HOMES])
        host.guests.bind_memory(HOMES)
        host.guests.resume(HOMES)
        guests = host.guests.bind_memory(dict.fromkeys(HOMES))
        print_progress(
            f'{TITLES[way]}: {guests_per_node(guests, 2)} at first, least at home '
            f'{min(home_share(guest) for guest in guests.values()):.2%}'
        )
        _, system_before, pages_before = read_counters(host)
        began, windows = time.monotonic(), []
        agent = start_balancer(way, host)
        while not windows or time.monotonic() - began < 60 * minutes:
            counted = host.guests.count_accesses(WINDOW_S)
            guests = host.guests.report()
            local, remote = (
                sum(guest[kind] for guest in counted['guests'].values())
                for kind in ('local', 'remote')
            )
            windows.append(
                {
                    'seconds': round(time.monotonic() - began, 1),
                    'local': local,
                    'remote': remote,
                    'remote_share': remote / max(1, local + remote),
                    'passes': sum(guest['passes'] for guest in counted['guests'].values()),
                    'guests_per_node': guests_per_node(guests, 2),
                    'least_at_home': min(map(home_share, guests.values())),
                }
            )
            print_progress(
                f'{TITLES[way]}: [{windows[-1]["seconds"]:4.0f} s] '
                f'{windows[-1]["guests_per_node"]}, remote '
                f'{windows[-1]["remote_share"]:.2%}, {windows[-1]["passes"]} passes'
            )
        spent, system, pages = read_counters(host)
        journal = agent.journal() if agent else []
    return {
        'way': way,
        'windows': windows,
        'cpu_s': spent / 100 if way in ('numad', 'agent') else None,
        'guests_system_s': (system - system_before) / 100,
        'migrated_bytes': (pages - pages_before) * PAGE_BYTES,
        'journal': journal,
    }


def summarize(run):
    """Return the row of a way: how it ended, averaged over its last third."""
    last = run['windows'][-max(1, len(run['windows']) // 3) :]
    local, remote = (sum(window[kind] for window in last) for kind in ('local', 'remote'))
    return {
        'guests_per_node': last[-1]['guests_per_node'],
        'remote_share': remote / max(1, local + remote),
        'passes_per_window': sum(window['passes'] for window in last) / len(last),
        'cpu_s': run['cpu_s'],
        'guests_system_s': run['guests_system_s'],
        'migrated_mib': run['migrated_bytes'] >> 20,
    }


def draw(runs, path):
    """Draw the remote share and the passes over time, one line for each way."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(9, 6.5), layout='constrained', sharex=True
    )
    for run in runs:
        at = [window['seconds'] for window in run['windows']]
        ends = ':'.join(map(str, run['windows'][-1]['guests_per_node']))
        above.plot(
            at,
            [100 * window['remote_share'] for window in run['windows']],
            marker='.',
            label=f'{TITLES[run["way"]]} (ends {ends})',
        )
        below.plot(at, [window['passes'] for window in run['windows']], marker='.')
    above.set_ylabel('remote DRAM accesses [%]')
    above.set_ylim(bottom=0)
    above.legend(frameon=False)
    below.set_ylabel(f'passes in {WINDOW_S} s')
    below.set_ylim(bottom=0)
    below.set_xlabel('seconds since the balancing began (emulated host)')
    for axes in (above, below):
        axes.grid(True, alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    figure.suptitle('Six busy guests, left five to one')
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parse_args(argv):
    """Parse the command line."""
    parser = command.parser('tests.bench.bench_balance', __doc__)
    parser.add_argument(
        '--minutes', type=float, default=5.0, help='duration of each way (default 5)'
    )
    parser.add_argument(
        '--only',
        default=','.join(TITLES),
        metavar='WAY,…',
        help='run only these ways, of %(default)s',
    )
    parser.add_argument(
        '--out',
        type=pathlib.Path,
        default=pathlib.Path('build/balance'),
        help='directory for plot and JSON (default %(default)s)',
    )
    return parser.parse_args(argv)


def main(argv=None):
    """Run the ways one after the other; return the exit code."""
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    scenario.end_on_sigterm()
    runs = [observe(way, args.minutes, f'balance-{os.getpid()}') for way in args.only.split(',')]
    (args.out / 'balance.json').write_text(json.dumps(runs, indent=1))
    draw(runs, args.out / 'balance.png')
    rows = {run['way']: summarize(run) for run in runs}
    print(
        f'{"":15} {"guests":>7} {"remote":>8} {"passes":>7} {"CPU s":>7} {"guests sys s":>12} '
        f'{"migrated":>9}'
    )
    for way, row in rows.items():
        spent = '–' if row['cpu_s'] is None else f'{row["cpu_s"]:.1f}'
        print(
            f'{TITLES[way]:15} {":".join(map(str, row["guests_per_node"])):>7} '
            f'{row["remote_share"]:8.2%} {row["passes_per_window"]:7.1f} {spent:>7} '
            f'{row["guests_system_s"]:12.1f} {count(row["migrated_mib"] * 1048576):>9}'
        )
    print(json.dumps({'bench': 'balance', 'minutes': args.minutes, 'ways': rows}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
