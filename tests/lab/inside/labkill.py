#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: kill a move at random points, and restart an agent each time.

Reads one JSON request on standard input: ``{"guest", "times", "seed"}``. The move is made by
:class:`nova_numa_pmc.moves.executor.MoveExecutor`, the agent's own code, in a child that is
killed with SIGKILL; a second child is the agent that systemd restarts: one tick of it, without
rebalancing. Afterwards, the guest's CPUs, as the kernel has them, must be those of its promise.
The last line is one JSON object.
"""

import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
from typing import Any

import labforce
import labguests

from nova_numa_pmc.agent.agent import Agent
from nova_numa_pmc.conf import opts
from nova_numa_pmc.core.rebalance import plan_records
from nova_numa_pmc.moves import executor

CPUS = ('0-1', '2-3')
NODES = '0-1'
MIB_PER_SEC = 64  # slow enough for kills in the middle


def options():
    """Return the host's options with a slow rate of moves."""
    defaults = opts.read()
    return defaults._replace(
        rebalance=opts.OFF,
        rebalance_options=defaults.rebalance_options._replace(bytes_per_sec=MIB_PER_SEC << 20),
    )


def move(promised):
    """Move the guest to the other node, until the end or until killed."""
    node = 1 - promised.cpu_nodes[0]
    planned = plan_records.Move(
        plan_records.MOVE, promised.uuid, promised.name, promised.cpu_nodes, (node,), (node,), 0
    )
    mover = executor.MoveExecutor(options(), '/', logging.getLogger('labkill'))
    mover.enqueue(plan_records.Plan((planned,)), {promised.uuid: promised})
    while True:
        wait_s = mover.step()
        if wait_s is None:
            return
        time.sleep(wait_s)


def run_first_tick():
    """Run the first tick of a new agent."""
    with contextlib.closing(Agent(options())) as agent:
        agent.tick()


def fork_child(work, *arguments):
    """Run work in a child; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work(*arguments)
        except BaseException:
            logging.exception('the child fails')
            os._exit(1)
        os._exit(0)
    return pid


def allowed_sets(name):
    """Return the guest's ({CPUs of its vCPU threads}, {nodes of them}) according to the kernel."""
    guest = labguests.report({})[name]
    return guest['cpus'], guest['mems']


def find_mistake(name, before, target):
    """Return a description of what is wrong after a kill, or '' if nothing is."""
    now = labforce.promise(name)
    if now.cpu_nodes not in (before.cpu_nodes, target) or not now.started:
        return f'promised {now}'
    cpus, mems = allowed_sets(name)
    if cpus != [CPUS[now.cpu_nodes[0]]] or mems != [NODES]:
        return f'promised node {now.cpu_nodes}, but its CPUs are {cpus} and its nodes {mems}'
    return ''


def main():
    """Kill, check and report."""
    logging.basicConfig(level=logging.ERROR)
    request = json.load(sys.stdin)
    name, rng = request['guest'], random.Random(request['seed'])
    size_bytes = sum(labguests.numa_bytes(labguests.pids()[name]).values())
    began = time.monotonic()
    os.waitpid(fork_child(move, labforce.promise(name)), 0)
    whole_s = time.monotonic() - began
    findings: dict[str, Any] = {
        'kills': 0,
        'ended_before': 0,
        'promised_before': 0,
        'between': 0,
        'wrong': [],
        'whole_move_s': whole_s,
    }
    while findings['kills'] < request['times']:
        before = labforce.promise(name)
        target = (1 - before.cpu_nodes[0],)
        pid = fork_child(move, before)
        time.sleep(rng.uniform(0, whole_s))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            findings['ended_before'] += 1
            whole_s *= 0.9  # the first one was slower
        else:
            findings['kills'] += 1
            far = labguests.numa_bytes(labguests.pids()[name]).get(str(target[0]), 0)
            findings['between'] += 0.02 * size_bytes < far < 0.98 * size_bytes
            findings['promised_before'] += labforce.promise(name).cpu_nodes == before.cpu_nodes
        _, status = os.waitpid(fork_child(run_first_tick), 0)
        wrong = 'the first tick failed' if status else find_mistake(name, before, target)
        if wrong:
            findings['wrong'].append(wrong)
        print(findings['kills'], flush=True)
    print(json.dumps(findings))


if __name__ == '__main__':
    main()
