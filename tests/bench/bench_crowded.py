# SPDX-License-Identifier: Apache-2.0
"""Crowd an emulated host, and compare the work done floating, pinned, and with the agent.

Twelve guests of one vCPU each run on four CPUs of two nodes: four want all of a CPU, four some and
four little, started in a shuffled order. The same guests work in three ways, one after the other:
permanently held to the nodes that the hook gave them at their start, without knowing their load;
floating over all CPUs; and as the agent has placed them. The agent is stopped while their work is
counted, because a tick takes a second in emulation, but a few milliseconds outside of it. Their
work is the number of instructions that they execute in the same time, read from outside of the
machine; remote memory costs nothing in emulation. Each vCPU of the machine is held to a pace below
its share of the real CPUs; otherwise, a CPU would run faster because others idle.
The last line of output is one JSON object.

examples:
  make bench-crowded                              ten orders, about an hour
  make bench-crowded ARGS='--orders 2'
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import time

LAB = pathlib.Path(__file__).resolve().parents[1] / 'lab'
sys.path.insert(0, str(LAB))

import conftest  # noqa: E402
from machine.agent import Agent  # noqa: E402
from machine.shape import Shape  # noqa: E402
from machine.vm import MachineGone  # noqa: E402

from tests.lab.demo import scenario  # noqa: E402

#: Floating is measured twice: the two results differ by the error of measurement.
AGAIN = 'floating again'
RATIOS = (('ours', 'static'), ('ours', 'floating'), (AGAIN, 'floating'))
DUTIES = (100,) * 4 + (50,) * 4 + (10,) * 4
PACE = 20_000_000  # instructions per second of each vCPU
WINDOW_S = 12
#: A tick takes some seconds at that pace.
INTERVAL_S, UNMEASURED_INTERVALS = 20, 3
#: QEMU occasionally ends by itself; the order then starts again on another machine.
MACHINES = 4


def print_progress(line):
    """Report progress."""
    print(f'bench-crowded: {line}', file=sys.stderr, flush=True)


def let_float(lab):
    """Let all guests run on any CPU."""
    with lab.guests.frozen():
        lab.run(
            '; '.join(
                f"echo 0-3 >'{path}'"
                for path in lab.cpusets()
                if path.endswith('/libvirt/cpuset.cpus')
            )
        )


def one_order(lab, duties):
    """Return {way: million instructions per second} of guests started in this order of duties."""
    specs = [
        {'name': f'g{i}', 'memory_mib': 16, 'cmdline': f'duty={duty} touch=50', 'paused': True}
        for i, duty in enumerate(duties)
    ]
    lab.guests.start(specs, parallel=2)
    lab.wait_for_hooks()
    lab.run('; '.join(f'virsh -q resume {spec["name"]}' for spec in specs), timeout=300)
    speeds = {'static': work(lab)}
    let_float(lab)
    speeds['floating'] = work(lab)
    agent = Agent(lab, INTERVAL_S)
    with lab.guests.frozen():
        agent.start(rebalance='auto')
    lab.machine.pace(PACE)  # it must see the host that the guests will have
    agent.after(UNMEASURED_INTERVALS, every_s=INTERVAL_S / 2)
    lab.machine.pace(0)
    with lab.guests.frozen():
        print('\n'.join(agent.journal()[-12:]), file=sys.stderr)
        agent.stop()
    speeds['ours'] = work(lab)
    let_float(lab)
    speeds[AGAIN] = work(lab)
    lab.run(
        'pkill -KILL -x qemu-system-x86; for i in $(seq 240); do '
        '[ -z "$(virsh -q list --name)" ] && exit 0; sleep 0.5; done; exit 1'
    )
    return speeds


def work(lab):
    """Return how fast all guests work together [million instructions per second]."""
    lab.machine.pace(PACE)
    time.sleep(WINDOW_S / 10)
    before, began = executed(lab), time.monotonic()
    time.sleep(WINDOW_S)
    after, ended = executed(lab), time.monotonic()
    lab.machine.pace(0)
    return round((after - before) / (ended - began) / 1e6, 3)


def executed(lab):
    """Return the number of instructions that guests have executed on any CPU."""
    return sum(cpu['guest_instructions'] for cpu in lab.machine.counts())


def parse_args(argv):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--orders', type=int, default=10, help='shuffled orders (default 10)')
    parser.add_argument('--seed', type=int, default=1, help='seed of the orders (default 1)')
    return parser.parse_args(argv)


def main(argv=None):
    """Run the orders; return the exit code."""
    args, began = parse_args(argv), time.monotonic()
    rng, done = random.Random(args.seed), []
    orders = [rng.sample(DUTIES, len(DUTIES)) for _ in range(args.orders)]
    scenario.end_on_sigterm()
    for _ in range(MACHINES):
        with (
            contextlib.suppress(MachineGone),
            scenario.machine_up(f'crowded-{os.getpid()}', Shape()) as machine,
        ):
            lab = conftest.Lab(machine)
            lab.install_hook()
            for duties in orders[len(done) :]:
                try:
                    done.append(one_order(lab, duties))
                except MachineGone as error:
                    print_progress(f'order {len(done) + 1} begins again: {error}')
                    raise
                print_progress(
                    f'[{time.monotonic() - began:4.0f} s] order {len(done)}, duties {duties}: '
                    + ', '.join(f'{way} {speed:.1f}' for way, speed in done[-1].items())
                    + ' M instructions/s'
                )
            break
    else:
        print_progress(f'{MACHINES} machines ended by themselves')
        return 1
    ratios = {
        f'{one} / {other}': sorted(round(speeds[one] / speeds[other], 4) for speeds in done)
        for one, other in RATIOS
    }
    means = {}
    for name, values in ratios.items():
        # Two standard errors of the mean; the error of a single order is not known.
        likely = 2 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 1.0
        means[name] = [round(statistics.mean(values), 4), round(likely, 4)]
        print(
            f'{name}: mean {means[name][0]:.3f} ± {likely:.3f}, median '
            f'{statistics.median(values):.3f}, least {values[0]:.3f}, most {values[-1]:.3f}'
        )
    print(json.dumps({'bench': 'crowded', 'orders': done, 'ratios': ratios, 'means': means}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
