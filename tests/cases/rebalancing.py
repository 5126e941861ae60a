# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of moves, on a host with an uneven load and an emulated kernel."""

import os

from nova_numa_pmc.conf import opts
from nova_numa_pmc.core.rebalance.plan_records import RebalanceOptions
from nova_numa_pmc.host.page_moves.move_pages import KernelCalls
from tests.cases import agent as agent_case
from tests.fixtures import domains, fake_host
from tests.fixtures.guest_memory import GuestMemory

LOG = agent_case.LOG
PAGES = 300


class Kernel(KernelCalls):
    """Emulate move_pages(2) and writes of cpusets for several guests."""

    def __init__(self):
        self.memories = {}
        self.before = lambda: None  # called before and after each change

    def locate(self, pid, addresses):
        return self.memories[pid].locate(pid, addresses)

    def move(self, pid, *rest):
        self.before()
        moved = self.memories[pid].move(pid, *rest)
        self.before()
        return moved

    def write(self, path, text):
        self.before()
        [tree] = [
            memory.tree
            for memory in self.memories.values()
            if path.startswith(memory.tree.scope + '/')
        ]
        tree.write(path, text)
        self.before()


#: Moves memory in any tick, without widening guests or measuring them for long before.
MOVING = RebalanceOptions(widen=False, measured_min_s=0.0, memory_every_s=0.0)


class RebalancingCase(agent_case.AgentCase):
    """Three guests that want two cores more than their node has, next to an idle node."""

    NUMBERS: tuple[int, ...] = (1, 2, 3)

    def setUp(self):
        super().setUp()
        self.kernel = Kernel()
        for number in self.NUMBERS:
            self.promise(number, 0)
            tree = self.host.launch(number, xml=self.xml(number))
            self.kernel.memories[tree.pid] = GuestMemory(tree, [0] * PAGES)
        self.load_node_0(0)

    def xml(self, number):
        return fake_host.domain_xml(number)

    def open_agent(self, rebalance=opts.AUTO, **more):
        """Open an agent that moves guests at once, instead of widening them first."""
        options = {'rebalance_options': MOVING, **more}
        agent = super().open_agent(rebalance=rebalance, **options)
        agent.close()
        agent = type(agent)(agent.options, self.root, self.kernel)
        self.addCleanup(agent.close)
        return agent

    def memory(self, number):
        """Return a guest's emulated memory."""
        return self.kernel.memories[4000 + number]

    def tree(self, number):
        """Return a guest's control groups."""
        return self.memory(number).tree

    def hold(self, number, cpus):
        """Set a guest's cpusets, as if another process had written them."""
        self.tree(number).set_all(cpus)

    def begin_job(self, number, job='migration out'):
        """Begin a job of libvirt on a guest; '' ends it."""
        domains.write_status(
            self.root,
            fake_host.name_of(number),
            self.xml(number),
            4000 + number,
            before="<job type='none' async='%s'/>\n" % job if job else '',
        )

    def load_node_0(self, at_s):
        """Keep node 0 fully busy, with guests that wait, up to this time."""
        for number in self.NUMBERS:
            self.set_guest_times(number, at_s * 4 / 3, at_s * 2 / 3)
        self.host.set_cpu_times(
            {cpu: at_s if cpu < 4 else 0 for cpu in range(8)},
            {cpu: at_s / 2 if cpu < 4 else 0 for cpu in range(8)},
        )

    def tick_until_moving(self, agent, ticks=6):
        """Tick and step until a move is in progress; return the time."""
        for tick_number in range(ticks):
            self.load_node_0(5 * tick_number)
            self.tick(agent, 5 * tick_number)
            if agent.step() is not None:
                return 5 * tick_number
        raise AssertionError('nothing was moved')

    def finish_move(self, agent):
        for _ in range(1000):
            if agent.step() is None:
                return
        raise AssertionError('it does not end')

    def places(self):
        """Return {number: (promised node ids, CPUs held, nodes of its pages)}."""
        places = {}
        for number in self.NUMBERS:
            promise = self.promises()[fake_host.uuid_of(number)]
            memory = self.memory(number)
            places[number] = (promise.cpu_nodes, memory.tree.held(), set(memory.nodes))
        return places

    HOME, AWAY = ((0,), '0-3', {0}), ((1,), '4-7', {1})

    def assert_held_after_a_kill(self, kill_at, work):
        """Kill a process that runs work(case) at a write; a new agent then corrects everything.

        :returns: whether the process got as far as that write
        """
        case = type(self)()
        case.setUp()
        try:
            pid = os.fork()
            if not pid:
                left = [kill_at]

                def before():
                    if not left[0]:
                        os._exit(9)
                    left[0] -= 1

                try:
                    case.kernel.before = before
                    work(case)
                finally:
                    os._exit(0)
            _, status = os.waitpid(pid, 0)
            case.tick(case.open_agent(opts.OFF), 100)
            for promised, cpus, _ in case.places().values():
                self.assertEqual({(0,): '0-3', (1,): '4-7'}[promised], cpus)
            self.assertEqual(3, len(case.promises()))
            return bool(status)
        finally:
            case.doCleanups()
