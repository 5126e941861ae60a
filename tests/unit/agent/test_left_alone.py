# SPDX-License-Identifier: Apache-2.0
"""Guests that must not be touched are left alone, although each has a strong reason to move."""

import os

from nova_numa_pmc.conf import opts
from tests.cases.rebalancing import RebalancingCase
from tests.fixtures import domains, fake_host

JOB = "  <job type='none' async='%s' phase='perform2' asyncStarted='1'/>\n"
BACKED = '  <memoryBacking>\n    %s\n  </memoryBacking>\n'
#: What causes this: (elements of the domain, of libvirt's status, of the promise).
MEMORY_STAYS = {
    'VFIO': ({'devices': domains.SRIOV}, {}, {}),
    'locked': ({'backing': BACKED % '<locked/>'}, {}, {}),
    'SEV': (
        {'rest': "  <launchSecurity type='sev'><policy>0x3</policy></launchSecurity>\n"},
        {},
        {},
    ),
    'huge pages': ({'backing': BACKED % '<hugepages/>'}, {}, {}),
    'huge pages, as promised': ({}, {}, {'page_bytes': 2 << 20}),
}
NOT_OURS = {
    'numatune by Nova': ({'placement': domains.NUMA_NODES_1}, {}, {}),
    'dedicated by Nova': ({'placement': domains.DEDICATED}, {}, {'vcpus': 0}),
    'pinned, as promised': ({}, {}, {'origin': 'pinned'}),
    'opted out': (
        {'metadata': domains.nova_metadata(extra_specs={'numa_pmc:policy': 'none'})},
        {},
        {'origin': 'floating'},
    ),
}
BUSY = {
    job: ({}, {'before': JOB % job}, {})
    for job in ('migration out', 'migration in', 'save', 'snapshot', 'dump', 'backup')
}
BUSY['postcopy, source'] = {}, {'before': JOB % 'migration out', 'state': 'paused'}, {}
PAUSED = {'paused': ({}, {'state': 'paused'}, {}), 'crashed': ({}, {'state': 'crashed'}, {})}
SPREAD = {
    'spread': (
        {'metadata': domains.nova_metadata(extra_specs={'numa_pmc:policy': 'spread'})},
        {},
        {},
    )
}


class LeftAloneTest(RebalancingCase):
    def be(self, domain, status, promise):
        """Give all guests these properties; their CPUs are already held to node 0."""
        for number in self.NUMBERS:
            name = fake_host.name_of(number)
            domains.write_status(
                self.root,
                name,
                domains.domain(name, fake_host.uuid_of(number), 524288, **domain),
                4000 + number,
                **status,
            )
            path = self.host.path('run/libvirt/qemu/%s.xml' % name)
            with open(path, encoding='utf-8') as file:
                text = file.read()
            with open(path, 'w', encoding='utf-8') as file:  # the threads that run here
                file.write(
                    text.replace("<vcpu id='1' pid='4712'/>", '').replace(
                        "pid='4711'", "pid='%d'" % (5000 + number)
                    )
                )
            self.promise(number, 0, **promise)
            self.hold(number, '0-3')

    def moved(self, ticks=8):
        """Return whether anything was moved while a move would have paid."""
        written = []
        self.kernel.before = lambda: written.append(1)
        agent = self.open_agent()
        has_moved = False
        for tick_number in range(ticks):
            self.load_node_0(5 * tick_number)
            self.tick(agent, 5 * tick_number)
            has_moved = has_moved or agent.step() is not None
        agent.close()
        return has_moved or bool(written)

    def test_plain_guests_of_a_crowded_node_are_moved(self):
        self.be({}, {}, {})
        self.assertTrue(self.moved())

    def test_guests_that_must_be_left_alone_are_not_moved(self):
        for why, kind in {**MEMORY_STAYS, **NOT_OURS, **BUSY, **PAUSED, **SPREAD}.items():
            with self.subTest(why):
                self.be(*kind)
                before = self.promises(), self.files()
                self.assertFalse(self.moved())
                self.assertEqual(before, (self.promises(), self.files()))

    def test_only_guests_of_ours_that_are_not_busy_are_held_again(self):
        for why, kind in {**MEMORY_STAYS, **NOT_OURS, **BUSY, **PAUSED}.items():
            with self.subTest(why):
                self.be(*kind)
                self.hold(1, '0-7')
                before = self.files()
                self.tick(self.open_agent(opts.OFF), 0)
                tree = self.tree(1)
                paths = {os.path.join(child, 'cpuset.cpus') for child in tree.children}
                held = why in MEMORY_STAYS or why in PAUSED
                self.assertEqual('0-3' if held else '0-7', tree.held())
                changed = {name for name, text in self.files().items() if before[name] != text}
                self.assertEqual(paths if held else set(), changed)

    def files(self):
        """Return all control files, because memory must not be touched either."""
        return self.tree(1).contents()
