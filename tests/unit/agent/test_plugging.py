# SPDX-License-Identifier: Apache-2.0
"""The agent follows vCPUs and memory that are plugged into running guests, or unplugged."""

import os

from nova_numa_pmc.conf import opts
from tests.cases.agent import MIB, AgentCase
from tests.cases.rebalancing import RebalancingCase
from tests.fixtures import domains, fake_host

DIMM = '    <memory model="dimm"><target><size unit="KiB">524288</size></target></memory>\n'


class PluggingTest(AgentCase):
    def describe(self, vcpus=2, most=8, memory_mib=512, max_mib=None, current_mib=None, pin=''):
        """Write libvirt's status file of the first guest with these values."""
        xml = domains.domain(
            fake_host.name_of(1),
            fake_host.uuid_of(1),
            memory_mib << 10,
            placement=pin,
            vcpu="<vcpu placement='static' current='%d'>%d</vcpu>" % (vcpus, most),
            devices=DIMM if memory_mib > 512 else '',
        ).decode()
        if max_mib:
            xml = xml.replace(
                '  <memory ',
                "  <maxMemory slots='4' unit='KiB'>%d</maxMemory>\n  <memory " % (max_mib << 10),
                1,
            )
        if current_mib:
            xml = xml.replace(
                "<currentMemory unit='KiB'>%d" % (memory_mib << 10),
                "<currentMemory unit='KiB'>%d" % (current_mib << 10),
            )
        text = domains.status(xml.encode(), 4001).decode()
        text = text.replace(
            "<vcpu id='0' pid='4711'/>",
            ''.join("<vcpu id='%d' pid='%d'/>" % (n, 5001 + 100 * n) for n in range(vcpus)),
        ).replace("<vcpu id='1' pid='4712'/>", '')
        self.host.write('run/libvirt/qemu/%s.xml' % fake_host.name_of(1), text)

    def promised(self):
        promise = self.promises()[fake_host.uuid_of(1)]
        return promise.vcpus, promise.memory_bytes >> 20

    def test_the_promise_follows_what_is_plugged_and_is_logged_once(self):
        agent = self.open_agent()
        self.launch(1)
        self.promise(1, 0)
        for at_s, changed, wanted, lines in (
            (0, {}, (2, 512), 0),
            (5, {'vcpus': 4}, (4, 512), 1),
            (10, {'vcpus': 4, 'memory_mib': 1024}, (4, 1024), 1),
            (15, {'vcpus': 1}, (1, 512), 1),
            # A balloon can be deflated again at any time; slots count once they are filled.
            (20, {'vcpus': 1, 'current_mib': 128}, (1, 512), 0),
            (25, {'vcpus': 1, 'max_mib': 4096}, (1, 512), 0),
            (30, {'vcpus': 1, 'max_mib': 4096, 'memory_mib': 1024}, (1, 1024), 1),
        ):
            with self.subTest(changed):
                with self.foreseen() as messages:
                    self.describe(**changed)
                    self.tick(agent, at_s)
                    self.tick(agent, at_s + 1)
                self.assertEqual(wanted, self.promised())
                self.assertEqual(lines, sum('previously promised' in text for text in messages))

    def test_a_guest_that_outgrows_its_node_is_held_to_more_of_them(self):
        agent = self.open_agent()
        tree = self.launch(1)
        self.promise(1, 1)
        for at_s, vcpus, nodes, held in (
            (0, 4, (1,), '4-7'),
            (5, 5, (0, 1), '0-7'),
            (10, 9, (0, 1), '0-7'),
        ):
            self.describe(vcpus=vcpus, most=16)
            with self.foreseen() as messages:
                self.tick(agent, at_s)
            promise = self.promises()[fake_host.uuid_of(1)]
            self.assertEqual((nodes, (1,)), (promise.cpu_nodes, promise.mem_nodes))
            self.assertEqual(held, tree.held())
            reason = 'promised nodes 0,1 instead of node 1: there are too few CPUs for its vCPUs'
            self.assertEqual(vcpus == 5, reason in ' '.join(messages))

    def test_a_new_vcpu_is_held_and_counted(self):
        agent = self.open_agent()
        tree = self.launch(1)
        self.promise(1, 1)
        self.describe(vcpus=1)
        self.set_guest_times(1, 0)
        self.tick(agent, 0)
        plugged = os.path.join(tree.parent, 'vcpu1')
        self.describe(vcpus=2)
        self.host.set_thread_times(4001, 5101, 0, 0, 5)
        for at_s, cpus in ((5, ''), (6, '0-7')):  # as libvirt creates it, and with <vcpu cpuset>
            tree.write_file(os.path.join(plugged, 'cpuset.cpus'), cpus + '\n')
            self.tick(agent, at_s)
            # It has no more than its parent, whatever it requests.
            self.assertEqual('4-7', tree.held())
        self.host.set_thread_times(4001, 5101, 3, 0, 5)
        [guest] = self.tick(agent, 11).sample.guests
        self.assertEqual((0.6, 0.6), (guest.cores, dict(guest.cores_by_node)[1]))


class WhileMovingTest(RebalancingCase):
    def test_what_is_plugged_while_a_guest_moves_is_recorded_afterwards(self):
        agent = self.open_agent(opts.AUTO)
        at_s = self.tick_until_moving(agent)
        [number] = [number for number, place in self.places().items() if place[0] == (1,)]
        path = 'run/libvirt/qemu/%s.xml' % fake_host.name_of(number)
        with open(self.host.path(path), encoding='utf-8') as file:
            text = file.read()
        self.host.write(path, text.replace('>524288<', '>1048576<'))
        self.tick(agent, at_s + 1)
        self.assertEqual(512 * MIB, self.promises()[fake_host.uuid_of(number)].memory_bytes)
        self.finish_move(agent)
        self.tick(agent, at_s + 2)
        self.assertEqual(1024 * MIB, self.promises()[fake_host.uuid_of(number)].memory_bytes)
        self.assertEqual(self.AWAY, self.places()[number])
