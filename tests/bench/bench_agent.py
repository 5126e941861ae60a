# SPDX-License-Identifier: Apache-2.0
"""Measure the CPU time of the agent's ticks except for sampling, with many guests at rest.

The agent reads files in a temporary directory, which cost less to read than the kernel's.
bench_sampling measures the cost of sampling on a real kernel; this measures what the agent adds.
In each tick, all guests are as promised, half of the CPUs are busy, and everything is planned (dry
run).
"""

import argparse
import contextlib
import json
import logging
import tempfile
import time

from nova_numa_pmc import model
from nova_numa_pmc.agent.agent import Agent
from nova_numa_pmc.agent.tick import Moment
from nova_numa_pmc.conf import agent as agent_conf, counters as counters_conf, host_options
from nova_numa_pmc.host import files
from nova_numa_pmc.model import MIB
from nova_numa_pmc.state import promises_file
from tests.fixtures import fake_host, measured_host, sysfs


def main():
    """Run the benchmark; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--guests', type=int, default=200)
    parser.add_argument('--ticks', type=int, default=20)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        host = measured_host.MeasuredHost(
            root, [sysfs.FakeNode(at, '%d-%d' % (32 * at, 32 * at + 31)) for at in (0, 1)]
        )
        times = measure(host, root, args)
        host.close()
    times['percent_of_a_core_at_5_s'] = round(times['agent_ms'] / 50, 3)
    print(
        '%(guests)d guests: sampling %(sampling_ms).1f ms a tick, everything else '
        '%(agent_ms).1f ms: %(percent_of_a_core_at_5_s).2f %% of a core at 5 s' % times
    )
    print(json.dumps(times))


def measure(host, root, args):
    """Run this number of ticks; return the means."""
    launch(host, root, args.guests)
    options = agent_conf.AgentOptions(
        host_options.read('/dev/null'),
        counters_conf.CounterOptions(),
        rebalance=agent_conf.DRY_RUN,
    )
    with contextlib.closing(Agent(options, root)) as agent:
        spent = {'sampling': 0.0}
        take = agent._sampler.sample

        def sample(*values):
            began = time.process_time()
            try:
                return take(*values)
            finally:
                spent['sampling'] += time.process_time() - began

        agent._sampler.sample = sample
        for at in range(2):
            tick(host, agent, args.guests, at)
        spent['sampling'], all_s = 0.0, 0.0
        for at in range(2, 2 + args.ticks):
            load(host, args.guests, at)
            began = time.process_time()
            agent.tick(now(at))
            all_s += time.process_time() - began
    return {
        'guests': args.guests,
        'ticks': args.ticks,
        'sampling_ms': round(1e3 * spent['sampling'] / args.ticks, 2),
        'agent_ms': round(1e3 * (all_s - spent['sampling']) / args.ticks, 2),
    }


def launch(host, root, count):
    """Start guests, placed equally on both nodes."""
    with promises_file.locked(root + '/run/nova-numa-pmc', 1.0, files.read_boot_id(root)) as draft:
        for number in range(1, count + 1):
            host.launch(number, {0: MIB, 1: MIB})
            node = number % 2
            draft.put(
                model.Promise(
                    fake_host.uuid_of(number),
                    fake_host.name_of(number),
                    (node,),
                    (node,),
                    2,
                    64 * MIB,
                    started=True,
                )
            )


def load(host, count, at):
    """Let each guest have run for a tenth of the time."""
    for number in range(1, count + 1):
        host.set_thread_times(4000 + number, 5000 + number, at / 2, at / 20, 32 * (number % 2))
    host.set_cpu_times(dict.fromkeys(range(64), at * 2.5), dict.fromkeys(range(64), at / 10))


def tick(host, agent, count, at):
    """Apply the load and tick, without measuring."""
    load(host, count, at)
    agent.tick(now(at))


def now(at):
    """Return the time of a tick."""
    return Moment(at * 5 * 10**9, 10**15 + at * 5 * 10**9, 1e9 + 5 * at)


if __name__ == '__main__':
    main()
