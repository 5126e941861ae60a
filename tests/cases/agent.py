# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of the agent, on a host with two nodes."""

import contextlib
import logging
import os

from nova_numa_pmc import model
from nova_numa_pmc.agent.agent import Agent, Moment
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.model import MIB
from nova_numa_pmc.state import promises_file, publication
from tests.cases.root import RootCase
from tests.fixtures import fake_host, measured_host

LOG = 'nova_numa_pmc.agent'
SECOND = measured_host.SECOND_NS
START_NS = 10**15


class AgentCase(RootCase):
    """A host with two nodes of four CPUs each, without a PMU, and its agent."""

    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root)
        self.addCleanup(self.host.close)
        self.host.set_idle()
        self.directory = os.path.join(self.root, 'run/nova-numa-pmc')

    def open_agent(self, **options):
        shared = host_options.read(os.path.join(self.root, host_options.PATH[1:]))
        agent = Agent(opts.AgentOptions(shared, opts.CounterOptions(), **options), self.root)
        self.addCleanup(agent.close)
        return agent

    def tick(self, agent, at_s, realtime_s=None):
        return agent.tick(
            Moment(
                at_s * SECOND,
                START_NS + at_s * SECOND,
                1000.0 + at_s if realtime_s is None else realtime_s,
            )
        )

    def launch(self, number, **more):
        tree = self.host.launch(number, {0: MIB, 1: MIB}, **more)
        self.set_guest_times(number, 0)
        return tree

    def set_guest_times(self, number, run_s, wait_s=0.0, cpu=0):
        self.host.set_thread_times(4000 + number, 5000 + number, run_s, wait_s, cpu)

    def promise(self, number, node, started=True, since_ns=START_NS - 1500 * SECOND, **more):
        promised = model.Promise(
            fake_host.uuid_of(number),
            fake_host.name_of(number),
            (node,),
            (node,),
            2,
            512 * MIB,
            since_ns=since_ns,
            started=started,
        )._replace(**more)
        with self.locked() as draft:
            draft.put(promised)
        return promised

    def locked(self, timeout_s=1.0):
        """Return a context in which the promises are locked, and can be changed."""
        return promises_file.locked(host_options.read('/dev/null'), self.root, timeout_s)

    def promises(self):
        return promises_file.read(host_options.read('/dev/null'), self.root).promises

    def set_busy(self, node0, node1):
        """Set the total time in seconds for which the CPUs of each node have been busy."""
        self.host.set_cpu_times(
            {cpu: (node0 if cpu < 4 else node1) / 4 for cpu in range(8)},
            dict.fromkeys(range(8), 0),
        )

    @contextlib.contextmanager
    def foreseen(self):
        """Fail if the block logs an unexpected error; yield a list that then has the messages."""
        texts = []
        with self.assertLogs(LOG, 'INFO') as logs:
            logging.getLogger(LOG).info('begins')  # assertLogs requires one
            yield texts
        texts += [record.getMessage() for record in logs.records]
        surprises = [record.getMessage() for record in logs.records if record.exc_info]
        self.assertEqual([], surprises)

    def read_publication(self):
        return publication.read(self.directory)
