# SPDX-License-Identifier: Apache-2.0
"""Vary how much less memory node 0 has free, and count where numad and we put six guests.

In an emulated two-node machine, real numad (`numad -w`, as libvirt calls it for placement='auto')
and our decision, based on the machine's live sysfs, are asked about the same six guests of 200 to
400 MiB, one after the other, in shuffled orders. After each answer, the memory that a guest has
touched by then (QEMU's 20 MiB and 12 % of its own) is actually allocated on the chosen node. The
last line of output is one JSON object.

examples:
  make bench-skew                                     about 10 minutes: numad sleeps 2 s
  make bench-skew ARGS='--skews 0,500 --orders 3'
  make bench-skew ARGS='--guests real --orders 1'     libvirt's guests, a minute or two each
"""

import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import time

LAB = pathlib.Path(__file__).resolve().parents[1] / 'lab'
sys.path.insert(0, str(LAB))

from machine.vm import LAB_DIR, MachineError  # noqa: E402

from tests.bench import command  # noqa: E402
from tests.lab.demo import report, scenario  # noqa: E402

SIZES_MIB = (200, 240, 280, 320, 360, 400)
SKEWS_MIB = (0, 100, 200, 400, 800)
REAL_START_S = 90  # a machine thawed and six guests started, on two cores
WAYS = ('numad', 'ours')


def print_progress(line):
    """Report progress."""
    print(f'bench-skew: {line}', file=sys.stderr, flush=True)


def spread(answers, nodes=2):
    """Format answers as '4:2'; guests that were given several nodes are separate: '2:3+1'."""
    alone = [sum(answer == [node] for answer in answers) for node in range(nodes)]
    several = sum(len(answer) != 1 for answer in answers)
    return ':'.join(map(str, alone)) + (f'+{several}' if several else '')


def is_even(answers, nodes=2):
    """Return whether each guest has one node, and no node has two guests more than another."""
    return all(len(answer) == 1 for answer in answers) and report.even(
        [sum(answer == [node] for answer in answers) for node in range(nodes)]
    )


def summarize(lines):
    """Count distributions: [{'skew_mib', 'orders', 'numad': {'3:3': n}, 'numad_even', ours…}]."""
    rows = []
    for skew_mib in sorted({line['skew_mib'] for line in lines}):
        here = [line for line in lines if line['skew_mib'] == skew_mib]
        row = {'skew_mib': skew_mib, 'orders': len(here)}
        for way in WAYS:
            row[way] = dict(collections.Counter(spread(line[way]) for line in here).most_common())
            row[f'{way}_even'] = sum(is_even(line[way]) for line in here)
        rows.append(row)
    return rows


def ask(skews_mib, orders, name):
    """Ask numad and our decision in a machine; yield a dict for each skew and order."""
    with scenario.machine_up(name, scenario.Plan().shape) as machine:
        machine.run('sysctl -q kernel.numa_balancing=0')
        machine.push([LAB / 'inside/labskew.py'], LAB_DIR)
        with subprocess.Popen(
            machine.command(f'python3 {LAB_DIR}/labskew.py'),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as asked:
            json.dump({'skews_mib': skews_mib, 'orders': orders}, asked.stdin)
            asked.stdin.close()
            try:
                for line in asked.stdout:
                    yield json.loads(line)
            except BaseException:
                asked.kill()
                raise
        if asked.returncode:
            raise MachineError(f'labskew.py ended with {asked.returncode}')


def start_real(skews_mib, orders, name):
    """Start libvirt's guests both ways; yield as :func:`ask`, based on where their bytes are."""
    print_progress(f'about {len(skews_mib) * len(orders) * 2 * REAL_START_S // 60} minutes')
    steps = scenario.Steps(lambda line: None)
    for skew_mib in skews_mib:
        plan = scenario.Plan(skew_mib=skew_mib, windows=0)
        for order in orders:
            line = {'skew_mib': skew_mib, 'order': order}
            for way, arrangement in zip(WAYS, ('numad', 'placed')):
                seen = report.summarize(
                    scenario.run(
                        name,
                        scenario.ARRANGEMENTS[arrangement],
                        plan,
                        steps,
                        order=[f'guest{i}' for i in order],
                    ),
                    plan.shape.nodes,
                )
                line[way] = [[guest['home']] for guest in seen['guests'].values()]
            yield line


def parse_args(argv):
    """Parse the command line."""
    parser = command.parser('tests.bench.bench_skew', __doc__)
    add = parser.add_argument
    add(
        '--skews',
        type=lambda text: [int(word) for word in text.split(',')],
        default=list(SKEWS_MIB),
        metavar='MIB,…',
        help='default ' + ','.join(map(str, SKEWS_MIB)),
    )
    add('--orders', type=int, default=10, metavar='N', help='shuffled orders (default 10)')
    add('--seed', type=int, default=1, help='seed of the orders (default 1)')
    add(
        '--guests',
        choices=('asked', 'real'),
        default='asked',
        help="only ask for places (default), or start libvirt's guests, all of 300 MiB",
    )
    return parser.parse_args(argv)


def main(argv=None):
    """Run the sweep; return 0 if ours were even every time."""
    args, began = parse_args(argv), time.monotonic()
    real = args.guests == 'real'
    shuffled = random.Random(args.seed)
    guests = list(range(1, 7)) if real else list(SIZES_MIB)
    orders = [shuffled.sample(guests, len(guests)) for _ in range(args.orders)]
    lines = []
    scenario.end_on_sigterm()
    try:
        for line in (start_real if real else ask)(args.skews, orders, f'skew-{os.getpid()}'):
            lines.append(line)
            print_progress(
                f'[{time.monotonic() - began:4.0f} s] {line["skew_mib"]} MiB, order '
                f'{line["order"]}: numad {spread(line["numad"])}, ours {spread(line["ours"])}'
            )
    except KeyboardInterrupt:
        print_progress('interrupted: these are the orders that were asked')
    rows = summarize(lines)
    print(
        f'{"skew MiB":>8}  {"orders":>6}  {"numad even":>10}  {"ours even":>9}  '
        'numad, guests per node (times)'
    )
    for row in rows:
        numad = ', '.join(f'{split} ({times})' for split, times in row['numad'].items())
        print(
            f'{row["skew_mib"]:8}  {row["orders"]:6}  {row["numad_even"]:10}  '
            f'{row["ours_even"]:9}  {numad}'
        )
    print(
        json.dumps(
            {
                'bench': 'skew',
                'guests': args.guests,
                'seconds': round(time.monotonic() - began, 1),
                'sweep': rows,
            }
        )
    )
    return 0 if lines and all(row['ours_even'] == row['orders'] for row in rows) else 1


if __name__ == '__main__':
    sys.exit(main())
